"""Mask2Former on XCiT for the 150 classes of ADE20k: mmseg's head, which is built from mmdet's."""

_base_ = ['mask2former_xcit.py']

custom_imports = dict(
    imports=[
        'xcit_mm',
        'xcit_mm.train.metrics.iou_metric',
        'xcit_mm.network.models.aligned_segmentors',
        'mmdet.models',
    ]
)
default_scope = 'mmseg'
visualizer = dict(type='SegLocalVisualizer')

model = dict(
    _delete_=True,
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
    backbone=dict(_base_.model.backbone, pad_maps=True),
    decode_head=dict(
        _base_.model.panoptic_head,
        num_classes=150,
        num_things_classes=150,
        align_corners=False,
        loss_cls=dict(_base_.model.panoptic_head.loss_cls, class_weight=[1.0] * 150 + [0.1]),
        train_cfg=_base_.model.train_cfg,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
