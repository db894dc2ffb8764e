"""UperNet, XCiT-S12/16, ADE20k, 160k: published 45.9 mIoU; 54.20 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_s12_16_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_small_12_p16.pth
"""

_base_ = ['_base_/upernet_xcit.py', '_base_/ade20k.py', '_base_/schedule_160k.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
