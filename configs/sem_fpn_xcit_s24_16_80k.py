"""Semantic FPN, XCiT-S24/16, ADE20k, 80k: published 44.6 mIoU; 53.64 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_s24_16_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_small_24_p16.pth
"""

_base_ = 'sem_fpn_xcit_s12_16_80k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_24_p16_384_dist.pth'
model = dict(backbone=dict(arch='s24', init_cfg=dict(checkpoint=pretrained)))
