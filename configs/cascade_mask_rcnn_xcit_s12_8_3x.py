"""Cascade Mask R-CNN, XCiT-S12/8, COCO, 3x: no published result; 81.00 M parameters.
Train: tools/dist_train.sh configs/cascade_mask_rcnn_xcit_s12_8_3x.py 8
"""

_base_ = 'cascade_mask_rcnn_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
