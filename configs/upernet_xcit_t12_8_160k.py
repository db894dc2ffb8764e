"""UperNet, XCiT-T12/8, ADE20k, 160k: published 43.5 mIoU; 33.87 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_t12_8_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_tiny_12_p8.pth
"""

_base_ = 'upernet_xcit_t12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
