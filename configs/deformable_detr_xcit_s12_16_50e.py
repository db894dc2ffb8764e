"""Deformable DETR, XCiT-S12/16, COCO, 50 epochs: no published result; 36.16 M parameters.
Train: tools/dist_train.sh configs/deformable_detr_xcit_s12_16_50e.py 8
"""

_base_ = [
    '_base_/deformable_detr_xcit.py',
    '_base_/coco_multi_scale.py',
    '_base_/schedule_deformable_detr.py',
]
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
