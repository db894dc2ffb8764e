"""Semantic FPN, XCiT-N12/16, on crops of the drawings with a key, which few crops show.

Minutes on two cores. Its early checkpoint is the start of sem_fpn_xcit_n12_16_context.py:

    python benchmarks/drawings.py context data/context
    tools/train.py configs/sem_fpn_xcit_n12_16_context_crops.py
"""

_base_ = [
    '_base_/sem_fpn_narrow_xcit.py',
    '_base_/context_semantic.py',
    '_base_/schedule_shapes.py',
]

default_hooks = dict(checkpoint=dict(interval=100, max_keep_ckpts=-1))
model = dict(data_preprocessor=dict(size=(160, 160)), decode_head=dict(num_classes=3))
