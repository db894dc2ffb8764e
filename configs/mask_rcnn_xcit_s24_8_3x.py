"""Mask R-CNN, XCiT-S24/8, COCO, 3x: published 48.1 box AP, 43.0 mask AP; 64.58 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_s24_8_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_small_24_p8.pth
"""

_base_ = 'mask_rcnn_xcit_s24_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
