"""DINO with four scales, XCiT-S12/16, COCO, 12 epochs: no published result; 42.78 M parameters.
Train: tools/dist_train.sh configs/dino_xcit_s12_16_12e.py 8
"""

_base_ = ['_base_/dino_xcit.py', '_base_/coco_multi_scale.py', '_base_/schedule_dino.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
