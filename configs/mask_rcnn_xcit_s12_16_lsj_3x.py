"""Mask R-CNN, XCiT-S12/16, COCO, 3x with large-scale jitter and copy-paste: no published result;
44.39 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_s12_16_lsj_3x.py 8
"""

_base_ = ['_base_/mask_rcnn_xcit.py', '_base_/coco_instance_lsj.py', '_base_/schedule_3x.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
