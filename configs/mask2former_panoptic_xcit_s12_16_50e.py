"""Mask2Former, panoptic, XCiT-S12/16, COCO, 50 epochs: no published result; 44.03 M parameters.
Train: tools/dist_train.sh configs/mask2former_panoptic_xcit_s12_16_50e.py 8
"""

_base_ = [
    '_base_/mask2former_panoptic_xcit.py',
    '_base_/coco_panoptic.py',
    '_base_/schedule_mask2former_50e.py',
]
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
