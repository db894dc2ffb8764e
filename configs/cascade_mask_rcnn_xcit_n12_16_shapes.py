"""Cascade Mask R-CNN, XCiT-N12/16 with narrow heads, on the built-in shapes, from scratch.

It reaches a box AP of 0.80 (AP50 0.98) in twelve minutes on one core:

    tools/make_shapes.py data/shapes
    tools/train.py configs/cascade_mask_rcnn_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/cascade_mask_rcnn_xcit.py',
    '_base_/shapes_instance.py',
    '_base_/schedule_shapes.py',
]

channels = 64
narrow = dict(
    num_shared_convs=1,
    in_channels=channels,
    conv_out_channels=channels,
    fc_out_channels=256,
    num_classes=3,
)
stages = _base_.model.train_cfg.rcnn
model = dict(
    backbone=dict(arch='n12', patch_size=16),
    neck=dict(in_channels=[128] * 4, out_channels=channels),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[4]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=[{**head, **narrow} for head in _base_.model.roi_head.bbox_head],
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(
            num_convs=2, in_channels=channels, conv_out_channels=channels, num_classes=3
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=200, max_per_img=200),
        rcnn=[{**stage, 'sampler': {**stage.sampler, 'num': 32}} for stage in stages],
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=200)),
)
