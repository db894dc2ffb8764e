"""RTMDet-L, XCiT-M24/16, COCO, 3x: no published result; 100.95 M parameters.
Train: tools/dist_train.sh configs/rtmdet_xcit_m24_16_3x.py 8
"""

_base_ = 'rtmdet_xcit_s12_16_3x.py'
pretrained = 'https://dl.fbaipublicfiles.com/xcit/xcit_medium_24_p16_384_dist.pth'
model = dict(
    backbone=dict(arch='m24', init_cfg=dict(checkpoint=pretrained)),
    neck=dict(in_channels=[512] * 3),
)
