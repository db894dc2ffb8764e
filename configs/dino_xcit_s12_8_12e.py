"""DINO with four scales, XCiT-S12/8, COCO, 12 epochs: no published result; 42.15 M parameters.
Train: tools/dist_train.sh configs/dino_xcit_s12_8_12e.py 8
"""

_base_ = 'dino_xcit_s12_16_12e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
