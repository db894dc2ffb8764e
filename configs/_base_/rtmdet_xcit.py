"""RTMDet's neck and head, of size L, on XCiT (arXiv 2212.07784).

As in mmdet's rtmdet_l_swin_b_4xb32-100e_coco.py, GroupNorm replaces BatchNorm: it allows few
images on a GPU.
"""

_base_ = ['detector_xcit.py']

norm_cfg = dict(type='GN', num_groups=32)
act_cfg = dict(type='SiLU', inplace=True)
model = dict(
    type='RTMDet',
    use_syncbn=False,  # sync_bn of default_runtime.py does it
    backbone=dict(start_level=1),
    neck=dict(
        type='CSPNeXtPAFPN',
        in_channels=[384] * 3,
        out_channels=256,
        num_csp_blocks=3,
        expand_ratio=0.5,
        norm_cfg=norm_cfg,
        act_cfg=act_cfg,
    ),
    bbox_head=dict(
        type='RTMDetSepBNHead',
        num_classes=80,
        in_channels=256,
        stacked_convs=2,
        feat_channels=256,
        anchor_generator=dict(type='MlvlPointGenerator', offset=0, strides=[8, 16, 32]),
        bbox_coder=dict(type='DistancePointBBoxCoder'),
        loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2.0, loss_weight=1.0),
        loss_bbox=dict(type='GIoULoss', loss_weight=2.0),
        with_objectness=False,
        exp_on_reg=True,
        share_conv=True,
        pred_kernel_size=1,
        norm_cfg=norm_cfg,
        act_cfg=act_cfg,
    ),
    train_cfg=dict(
        assigner=dict(type='DynamicSoftLabelAssigner', topk=13),
        allowed_border=-1,
        pos_weight=-1,
        debug=False,
    ),
    test_cfg=dict(
        nms_pre=30000,
        min_bbox_size=0,
        score_thr=0.001,
        nms=dict(type='nms', iou_threshold=0.65),
        max_per_img=300,
    ),
)
