"""Mask R-CNN, XCiT-M24/16, COCO, 3x: published 46.7 box AP, 42.0 mask AP; 101.15 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_m24_16_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_medium_24_p16.pth
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[512] * 4),
)
