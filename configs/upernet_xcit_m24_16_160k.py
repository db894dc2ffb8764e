"""UperNet, XCiT-M24/16, ADE20k, 160k: published 47.6 mIoU; 112.18 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_m24_16_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_medium_24_p16.pth
"""

_base_ = 'upernet_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512),
)
