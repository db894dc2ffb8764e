"""Semantic FPN, XCiT-T12/16, from the released ADE20k segmentor: few images.

The configs that tools/prepare_data.py masks writes inherit from it, with other data. By itself, it
trains on the built-in shapes:

    tools/make_shapes.py data/shapes
    tools/train.py configs/fine_tune_sem_fpn_xcit_t12_16.py
Starts from: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_tiny_12_p16.pth
"""

_base_ = [
    '_base_/sem_fpn_xcit.py',
    '_base_/shapes_semantic.py',
    '_base_/schedule_fine_tune.py',
]
load_from = 'https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_tiny_12_p16.pth'

train_dataloader = dict(batch_size=4)
default_hooks = dict(checkpoint=dict(save_best='mIoU'), stopping=dict(monitor='mIoU'))

model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=dict(arch='t12', patch_size=16, norm_eval=True, frozen_stages=4),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4, num_classes=4),
)
