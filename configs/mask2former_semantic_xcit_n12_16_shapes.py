"""Mask2Former, XCiT-N12/16 with a narrow head, labels of the built-in shapes: for a CPU.

It takes about 25 minutes on one core:

    tools/make_shapes.py data/shapes
    tools/train.py configs/mask2former_semantic_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/mask2former_semantic_xcit.py',
    '_base_/mask2former_narrow.py',
    '_base_/shapes_semantic.py',
    '_base_/schedule_mask2former_shapes.py',
]

classes = 4
model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=dict(arch='n12', patch_size=16),
    decode_head=dict(
        _base_.narrow_head,
        num_classes=classes,
        num_things_classes=classes,
        loss_cls=dict(class_weight=[1.0] * classes + [0.1]),
        train_cfg=dict(num_points=1024),
    ),
)
