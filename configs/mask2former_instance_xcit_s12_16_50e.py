"""Mask2Former, instance, XCiT-S12/16, COCO, 50 epochs: no published result; 44.01 M parameters.
Train: tools/dist_train.sh configs/mask2former_instance_xcit_s12_16_50e.py 8
"""

_base_ = [
    '_base_/mask2former_xcit.py',
    '_base_/coco_lsj.py',
    '_base_/schedule_mask2former_50e.py',
]
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
