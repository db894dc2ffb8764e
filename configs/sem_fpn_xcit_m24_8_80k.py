"""Semantic FPN, XCiT-M24/8, ADE20k, 80k: published 46.9 mIoU; 91.86 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_m24_8_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_medium_24_p8.pth
"""

_base_ = 'sem_fpn_xcit_m24_16_80k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
