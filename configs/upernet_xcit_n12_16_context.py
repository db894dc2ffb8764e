"""UperNet, XCiT-N12/16, on whole drawings with a key, after a training on crops.

Minutes on two cores:

    tools/train.py configs/upernet_xcit_n12_16_context_crops.py
    tools/train.py configs/upernet_xcit_n12_16_context.py
"""

_base_ = [
    '_base_/upernet_narrow_xcit.py',
    '_base_/context_semantic_whole.py',
    '_base_/schedule_context_whole.py',
]

stream = dict(memory='2GiB', store=None)
sync_bn = None  # BatchNorm stays in evaluation mode
load_from = 'work_dirs/upernet_xcit_n12_16_context_crops/iter_600.pth'
model = dict(backbone=dict(norm_eval=True), decode_head=dict(num_classes=3))
