"""Mask2Former, semantic, XCiT-M24/8, ADE20k, 160k: no published result; 98.63 M parameters.
Train: tools/dist_train.sh configs/mask2former_semantic_xcit_m24_8_160k.py 8
"""

_base_ = 'mask2former_semantic_xcit_m24_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
