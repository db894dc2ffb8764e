"""Mask R-CNN, XCiT-T12/8, COCO, 3x: published 44.5 box AP, 40.3 mask AP; 25.87 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_t12_8_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_tiny_12_p8.pth
"""

_base_ = 'mask_rcnn_xcit_t12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
