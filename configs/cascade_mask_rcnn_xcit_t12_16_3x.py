"""Cascade Mask R-CNN, XCiT-T12/16, COCO, 3x: no published result; 64.01 M parameters.
Train: tools/dist_train.sh configs/cascade_mask_rcnn_xcit_t12_16_3x.py 8
"""

_base_ = 'cascade_mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 4),
)
