"""Mask R-CNN, XCiT-T12/16, COCO, 3x: published 42.7 box AP, 38.5 mask AP; 26.18 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_t12_16_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_tiny_12_p16.pth
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 4),
)
