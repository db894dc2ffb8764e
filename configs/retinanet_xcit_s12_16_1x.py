"""RetinaNet, XCiT-S12/16 with out_norm, COCO, 1x: no published result; 34.10 M parameters.
Train: tools/dist_train.sh configs/retinanet_xcit_s12_16_1x.py 8
"""

_base_ = ['_base_/retinanet_xcit.py', '_base_/coco_detection.py', '_base_/schedule_1x.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
