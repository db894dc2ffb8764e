"""DINO with four scales, XCiT-T12/16, COCO, 12 epochs: no published result; 25.06 M parameters.
Train: tools/dist_train.sh configs/dino_xcit_t12_16_12e.py 8
"""

_base_ = 'dino_xcit_s12_16_12e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 3),
)
