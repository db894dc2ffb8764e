"""Mask2Former, semantic, XCiT-T12/16, ADE20k, 160k: no published result; 25.82 M parameters.
Train: tools/dist_train.sh configs/mask2former_semantic_xcit_t12_16_160k.py 8
"""

_base_ = 'mask2former_semantic_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    decode_head=dict(in_channels=[192] * 4),
)
