"""RTMDet-L, XCiT-S12/16, COCO, 3x: no published result; 37.22 M parameters.
Train: tools/dist_train.sh configs/rtmdet_xcit_s12_16_3x.py 8
"""

_base_ = ['_base_/rtmdet_xcit.py', '_base_/coco_multi_scale.py', '_base_/schedule_3x.py']
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_384_dist.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
train_dataloader = dict(dataset=dict(filter_cfg=dict(filter_empty_gt=True)))
optim_wrapper = dict(paramwise_cfg=dict(bypass_duplicate=True))  # the levels share convolutions
