"""Semantic FPN, XCiT-S12/16, ADE20k, 80k: published 43.9 mIoU; 32.22 M parameters.
Train: tools/dist_train.sh configs/sem_fpn_xcit_s12_16_80k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_small_12_p16.pth
"""

_base_ = ['_base_/sem_fpn_xcit.py', '_base_/ade20k.py', '_base_/schedule_80k.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
