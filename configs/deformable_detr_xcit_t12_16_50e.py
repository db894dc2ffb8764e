"""Deformable DETR, XCiT-T12/16, COCO, 50 epochs: no published result; 18.44 M parameters.
Train: tools/dist_train.sh configs/deformable_detr_xcit_t12_16_50e.py 8
"""

_base_ = 'deformable_detr_xcit_s12_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 3),
)
