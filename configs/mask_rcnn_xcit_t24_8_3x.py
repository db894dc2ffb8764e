"""Mask R-CNN, XCiT-T24/8, COCO, 3x: no published result; 31.27 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_t24_8_3x.py 8
"""

_base_ = 'mask_rcnn_xcit_t24_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
