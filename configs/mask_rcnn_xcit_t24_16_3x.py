"""Mask R-CNN, XCiT-T24/16, COCO, 3x: no published result; 31.58 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_t24_16_3x.py 8
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t24', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 4),
)
