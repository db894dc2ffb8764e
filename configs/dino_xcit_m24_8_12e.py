"""DINO with four scales, XCiT-M24/8, COCO, 12 epochs: no published result; 97.76 M parameters.
Train: tools/dist_train.sh configs/dino_xcit_m24_8_12e.py 8
"""

_base_ = 'dino_xcit_m24_16_12e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
