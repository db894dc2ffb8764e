"""ADE20k with 150 classes, short sides of 256 to 1024 pixels, crops of 512."""

_base_ = ['ade20k.py']

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomChoiceResize',
        scales=[512 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2048,
    ),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
