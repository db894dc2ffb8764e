"""UperNet, XCiT-S12/8, ADE20k, 160k: published 46.6 mIoU; 52.98 M parameters.
Train: tools/dist_train.sh configs/upernet_xcit_s12_8_160k.py 8
Weights: https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_small_12_p8.pth
"""

_base_ = 'upernet_xcit_s12_16_160k.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
