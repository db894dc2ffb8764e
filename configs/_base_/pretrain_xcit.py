"""DINO with an XCiT on RGB images (arXiv 2104.14294): no labels, crops of images in folders."""

model = dict(
    type='SelfDistillation',
    data_preprocessor=dict(
        type='ImagePreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    backbone=dict(type='ImageXCiT'),
)
train_pipeline = [
    dict(type='LoadImage'),
    dict(type='MultiCrop'),
    dict(type='PackImage'),
]
train_dataloader = dict(
    num_workers='auto',
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='UnlabeledImages',
        data_prefix=dict(img=''),
        pipeline=train_pipeline,
    ),
)
