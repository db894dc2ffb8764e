"""ADE20k with 150 classes, short sides of 256 to 1024 pixels, crops of 512."""

_base_ = ['ade20k.py']

train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(
        type='RandomChoiceResize',
        scales=[512 * tenths // 10 for tenths in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2048,
    ),
    *_base_.train_pipeline[3:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
