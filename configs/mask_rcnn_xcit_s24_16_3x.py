"""Mask R-CNN, XCiT-S24/16, COCO, 3x: published 46.5 box AP, 41.8 mask AP; 65.80 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_s24_16_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_small_24_p16.pth
"""

_base_ = 'mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_24_p16_384_dist.pth'
model = dict(backbone=dict(arch='s24', init_cfg=dict(checkpoint=pretrained)))
