"""An XCiT that learns a teacher's features from RGB images without labels.

See docs/own_weights.md#distillation.
"""

model = dict(
    type='FeatureDistillation',
    data_preprocessor=dict(
        type='ImagePreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    backbone=dict(type='ImageXCiT', arch='s12', patch_size=16),
)
train_dataloader = dict(
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    dataset=dict(
        type='UnlabeledImages',
        pipeline=[
            dict(type='LoadImage'),
            dict(type='CropAndFlip', size=224),
            dict(type='PackImage'),
        ],
    ),
)
