"""Heights with Semantic FPN, XCiT-N12/16, on built-in drawings: for a CPU, from scratch.

It reaches a mean absolute error of 0.96 m in four minutes of one core (see docs/scenes.md):

    python benchmarks/drawings.py heights data/heights
    tools/train.py configs/heights_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/heights_fpn_xcit.py',
    '_base_/shapes_heights.py',
    '_base_/schedule_shapes.py',
]

model = dict(
    data_preprocessor=dict(size=(160, 160)),
    decode_head=dict(mean=1.5, std=5.0),  # of the drawings, in meters
)
