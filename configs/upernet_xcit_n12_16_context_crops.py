"""UperNet, XCiT-N12/16, on crops of the drawings with a key, most of which do not show the key.

Minutes on two cores, as the start of upernet_xcit_n12_16_context.py:

    tools/make_shapes.py data/context --context
    tools/train.py configs/upernet_xcit_n12_16_context_crops.py
"""

_base_ = [
    '_base_/upernet_narrow_xcit.py',
    '_base_/context_semantic.py',
    '_base_/schedule_shapes.py',
]

model = dict(data_preprocessor=dict(size=(160, 160)), decode_head=dict(num_classes=3))
