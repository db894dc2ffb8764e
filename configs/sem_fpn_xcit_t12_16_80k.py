"""Semantic FPN, XCiT-T12/16, ADE20k, 80k: published 38.1 mIoU; 8.90 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_t12_16_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_tiny_12_p16.pth
"""

_base_ = 'sem_fpn_xcit_s12_16_80k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4),
)
