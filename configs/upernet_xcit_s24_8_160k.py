"""UperNet, XCiT-S24/8, ADE20k, 160k: published 48.1 mIoU; 74.40 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_s24_8_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_small_24_p8.pth
"""

_base_ = 'upernet_xcit_s24_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_24_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
