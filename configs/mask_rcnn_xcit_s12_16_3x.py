"""Mask R-CNN, XCiT-S12/16, COCO, 3x: published 45.3 box AP, 40.8 mask AP; 44.39 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_s12_16_3x.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_small_12_p16.pth
"""

_base_ = ['_base_/mask_rcnn_xcit.py', '_base_/coco_instance.py', '_base_/schedule_3x.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
