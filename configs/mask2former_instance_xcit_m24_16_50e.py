"""Mask2Former, instance, XCiT-M24/16, COCO, 50 epochs: no published result; 100.78 M parameters.
Train: tools/dist_train.sh configs/mask2former_instance_xcit_m24_16_50e.py 8
"""

_base_ = 'mask2former_instance_xcit_s12_16_50e.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    panoptic_head=dict(in_channels=[512] * 4),
)
