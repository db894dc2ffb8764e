"""Mask2Former, instance, XCiT-S12/8, COCO, 50 epochs: no published result; 42.79 M parameters.
Train: tools/dist_train.sh configs/mask2former_instance_xcit_s12_8_50e.py 8
"""

_base_ = 'mask2former_instance_xcit_s12_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
model = dict(backbone=dict(patch_size=8, init_cfg=dict(checkpoint=pretrained)))
