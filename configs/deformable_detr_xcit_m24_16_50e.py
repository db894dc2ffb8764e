"""Deformable DETR, XCiT-M24/16, COCO, 50 epochs: no published result; 92.27 M parameters.
Train: tools/dist_train.sh configs/deformable_detr_xcit_m24_16_50e.py 8
"""

_base_ = 'deformable_detr_xcit_s12_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[512] * 3),
)
