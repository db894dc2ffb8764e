"""UperNet, XCiT-T12/16, ADE20k, 160k: published 41.5 mIoU; 34.17 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_t12_16_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_tiny_12_p16.pth
"""

_base_ = 'upernet_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192),
)
