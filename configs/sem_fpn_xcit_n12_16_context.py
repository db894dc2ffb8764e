"""Semantic FPN, XCiT-N12/16, on whole drawings with a key, after a few steps on crops.

Minutes on two cores:

    tools/train.py configs/sem_fpn_xcit_n12_16_context_crops.py
    tools/train.py configs/sem_fpn_xcit_n12_16_context.py
"""

_base_ = [
    '_base_/sem_fpn_narrow_xcit.py',
    '_base_/context_semantic_whole.py',
    '_base_/schedule_context_whole.py',
]

stream = dict(memory='2GiB', store=None)
sync_bn = None  # BatchNorm stays in evaluation mode
# An early checkpoint: later ones have learned that nothing reveals the class.
load_from = 'work_dirs/sem_fpn_xcit_n12_16_context_crops/iter_100.pth'
model = dict(backbone=dict(norm_eval=True), decode_head=dict(num_classes=3))
