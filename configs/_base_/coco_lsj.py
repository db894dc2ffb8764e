"""COCO 2017 with instance masks and large-scale jitter in 1024 pixels, without copy-paste."""

_base_ = ['coco_instance.py']

jitter = [
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=(1024, 1024), ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(1024, 1024), recompute_bbox=True, allow_negative_crop=True),
]
train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    *jitter,
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    sampler=dict(type='InfiniteSampler'),
    batch_sampler=None,
    dataset=dict(pipeline=train_pipeline),
)
