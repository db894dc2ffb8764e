"""Semantic FPN, XCiT-M24/16, ADE20k, 80k: published 45.9 mIoU; 94.04 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_m24_16_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_medium_24_p16.pth
"""

_base_ = 'sem_fpn_xcit_s12_16_80k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', drop_path_rate=0.2, init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[512] * 4, out_channels=512),
    decode_head=dict(in_channels=[512] * 4),
)
