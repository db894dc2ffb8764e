"""Mask2Former, semantic, XCiT-S12/16, ADE20k, 160k: no published result; 44.03 M parameters.
Train: tools/dist_train.sh configs/mask2former_semantic_xcit_s12_16_160k.py 8
"""

_base_ = [
    '_base_/mask2former_semantic_xcit.py',
    '_base_/ade20k_short_side.py',
    '_base_/schedule_mask2former_160k.py',
]
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
