"""Mask R-CNN, XCiT-N12/8, COCO, 3x: no published result; 22.62 M parameters.
Train: tools/dist_train.sh configs/mask_rcnn_xcit_n12_8_3x.py 8
"""

_base_ = 'mask_rcnn_xcit_n12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_nano_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
