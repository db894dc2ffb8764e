"""UperNet, XCiT-S24/16, ADE20k, 160k: published 46.9 mIoU; 75.62 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_s24_16_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_small_24_p16.pth
"""

_base_ = 'upernet_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_24_p16_384_dist.pth'
model = dict(backbone=dict(arch='s24', init_cfg=dict(checkpoint=pretrained)))
