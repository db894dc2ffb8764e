"""A detector on XCiT, without neck and heads (paper, section 4.3)."""

custom_imports = dict(
    imports=[
        'xcit_mm',
        'xcit_mm.data.datasets.coco',
        'xcit_mm.data.datasets.panoptic',
        'xcit_mm.train.metrics.coco_metric',
        'xcit_mm.train.metrics.panoptic_metric',
        'xcit_mm.network.heads.batched_roi_head',
        'xcit_mm.network.heads.batched_rpn_head',
    ]
)
default_scope = 'mmdet'
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='DetLocalVisualizer', vis_backends=vis_backends)

model = dict(
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(type='XCiT', arch='s12', patch_size=16),
)
