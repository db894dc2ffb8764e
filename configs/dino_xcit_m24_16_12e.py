"""DINO with four scales, XCiT-M24/16, COCO, 12 epochs: no published result; 98.89 M parameters.
Train: tools/dist_train.sh configs/dino_xcit_m24_16_12e.py 8
"""

_base_ = 'dino_xcit_s12_16_12e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[512] * 3),
)
