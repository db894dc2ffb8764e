"""Mask R-CNN, XCiT-L24/8, COCO, 3x: no published result; 197.03 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_l24_8_3x.py 8
"""

_base_ = 'mask_rcnn_xcit_l24_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_large_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
