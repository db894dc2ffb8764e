"""Mask R-CNN, XCiT-N12/16, COCO, 3x: no published result; 22.76 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_n12_16_3x.py 8
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_nano_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='n12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[128] * 4),
)
