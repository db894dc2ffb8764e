"""RetinaNet, XCiT-T12/16 with out_norm, COCO, 1x: no published result; 15.49 M parameters.
Train: tools/dist_train.sh configs/retinanet_xcit_t12_16_1x.py 8
"""

_base_ = 'retinanet_xcit_s12_16_1x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_tiny_12_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='t12', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[192] * 4),
)
