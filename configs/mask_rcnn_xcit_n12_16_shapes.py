"""Mask R-CNN, XCiT-N12/16 with narrow heads, on the built-in shapes: for a CPU, from scratch.

Minutes on two cores:

    tools/make_shapes.py data/shapes
    tools/train.py configs/mask_rcnn_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/mask_rcnn_xcit.py',
    '_base_/shapes_instance.py',
    '_base_/schedule_shapes.py',
]

channels = 64
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
        bbox_head=dict(in_channels=channels, fc_out_channels=256, num_classes=3),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(
            num_convs=2, in_channels=channels, conv_out_channels=channels, num_classes=3
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=200, max_per_img=200),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=200)),
)
