"""Cascade Mask R-CNN, XCiT-M24/8, COCO, 3x: no published result; 136.82 M parameters.
Train: tools/dist_train.sh configs/cascade_mask_rcnn_xcit_m24_8_3x.py 8
"""

_base_ = 'cascade_mask_rcnn_xcit_m24_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
