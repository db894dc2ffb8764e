"""Cascade Mask R-CNN, XCiT-S12/16, COCO, 3x: no published result; 82.22 M parameters.
Train: tools/dist_train.sh configs/cascade_mask_rcnn_xcit_s12_16_3x.py 8
"""

_base_ = ['_base_/cascade_mask_rcnn_xcit.py', '_base_/coco_instance.py', '_base_/schedule_3x.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
