"""Semantic FPN, XCiT-S12/8, ADE20k, 80k: published 44.2 mIoU; 31.00 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_s12_8_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_small_12_p8.pth
"""

_base_ = 'sem_fpn_xcit_s12_16_80k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
