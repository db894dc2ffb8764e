"""Mask2Former, panoptic, XCiT-M24/8, COCO, 50 epochs: no published result; 98.62 M parameters.
Train: tools/dist_train.sh configs/mask2former_panoptic_xcit_m24_8_50e.py 8
"""

_base_ = 'mask2former_panoptic_xcit_m24_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
