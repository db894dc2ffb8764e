"""Mask2Former, panoptic, XCiT-T12/16, COCO, 50 epochs: no published result; 25.82 M parameters.
Train: tools/dist_train.sh configs/mask2former_panoptic_xcit_t12_16_50e.py 8
"""

_base_ = 'mask2former_panoptic_xcit_s12_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    panoptic_head=dict(in_channels=[192] * 4),
)
