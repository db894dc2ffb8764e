"""COCO 2017 with boxes only and DETR's multi-scale training, also on images without objects."""

_base_ = ['coco_detection.py']

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True),
    *_base_.augmentation,
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline)
)
