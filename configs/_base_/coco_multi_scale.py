"""COCO 2017 with boxes only and DETR's multi-scale training."""

_base_ = ['coco_detection.py']

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True),
    *_base_.augmentation,
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
