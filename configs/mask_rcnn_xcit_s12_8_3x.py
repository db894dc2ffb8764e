"""Mask R-CNN, XCiT-S12/8, COCO, 3x: published 47.0 box AP, 42.3 mask AP; 43.17 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_s12_8_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_small_12_p8.pth
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
