"""Semantic FPN, XCiT-N12/16, on windows of a large drawing, evaluated on a whole one, streamed.

It reaches an mIoU of 76 in twelve minutes on one core (see docs/scenes.md):

    python benchmarks/drawings.py mosaic data/scenes/training --columns 16 --seed 1
    python benchmarks/drawings.py mosaic data/scenes/validation --columns 8 --seed 2
    tools/train.py configs/sem_fpn_xcit_n12_16_scene_windows.py
"""

_base_ = [
    '_base_/sem_fpn_narrow_xcit.py',
    '_base_/scene_windows_semantic.py',
    '_base_/schedule_shapes.py',
]

model = dict(data_preprocessor=dict(size=(160, 160)), decode_head=dict(num_classes=4))
