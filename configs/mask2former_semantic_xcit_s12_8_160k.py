"""Mask2Former, semantic, XCiT-S12/8, ADE20k, 160k: no published result; 42.81 M parameters.
Train: tools/dist_train.sh configs/mask2former_semantic_xcit_s12_8_160k.py 8
"""

_base_ = 'mask2former_semantic_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
