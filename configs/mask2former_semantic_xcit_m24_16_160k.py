"""Mask2Former, semantic, XCiT-M24/16, ADE20k, 160k: no published result; 100.80 M parameters.
Train: tools/dist_train.sh configs/mask2former_semantic_xcit_m24_16_160k.py 8
"""

_base_ = 'mask2former_semantic_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    decode_head=dict(in_channels=[512] * 4),
)
