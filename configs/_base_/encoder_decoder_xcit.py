"""A segmentor on XCiT, without neck and heads (paper, section 4.4)."""

custom_imports = dict(
    imports=[
        'xcit_mm',
        'xcit_mm.train.metrics.iou_metric',
        'xcit_mm.network.models.aligned_segmentors',
    ]
)
default_scope = 'mmseg'
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='SegLocalVisualizer', vis_backends=vis_backends)

model = dict(
    type='AlignedEncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(type='XCiT', arch='s12', patch_size=16, pad_maps=True),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
