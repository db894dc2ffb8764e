"""Semantic FPN, XCiT-N12/16, on the built-in shapes: for a CPU, from scratch.

Minutes on two cores:

    tools/make_shapes.py data/shapes
    tools/train.py configs/sem_fpn_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/sem_fpn_xcit.py',
    '_base_/shapes_semantic.py',
    '_base_/schedule_shapes.py',
]

channels = 128
model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=dict(arch='n12', patch_size=16),
    neck=dict(in_channels=[channels] * 4, out_channels=channels),
    decode_head=dict(in_channels=[channels] * 4, num_classes=4),
)
