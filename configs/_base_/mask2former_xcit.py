"""Mask2Former (arXiv 2112.01527) on XCiT, for instances: mmdet's head with its usual sizes.

The prefix ``mmdet.`` lets the head of mask2former_semantic_xcit.py take the same parts.
"""

_base_ = ['detector_xcit.py']

model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        pad_mask=True,
        batch_augments=[dict(type='BatchFixedSizePad', size=(1024, 1024), pad_mask=True)],
    ),
    panoptic_head=dict(
        type='Mask2FormerHead',
        in_channels=[384] * 4,
        feat_channels=256,
        out_channels=256,
        num_things_classes=80,
        num_stuff_classes=0,
        num_queries=100,
        pixel_decoder=dict(
            type='mmdet.MSDeformAttnPixelDecoder',
            norm_cfg=dict(type='GN', num_groups=32),
            encoder=dict(
                num_layers=6,
                layer_cfg=dict(
                    self_attn_cfg=dict(embed_dims=256, num_levels=3, dropout=0.0, batch_first=True),
                    ffn_cfg=dict(embed_dims=256, feedforward_channels=1024),
                ),
            ),
            positional_encoding=dict(num_feats=128, normalize=True),
        ),
        positional_encoding=dict(num_feats=128, normalize=True),
        transformer_decoder=dict(
            num_layers=9,
            layer_cfg=dict(
                self_attn_cfg=dict(embed_dims=256, num_heads=8, dropout=0.0, batch_first=True),
                cross_attn_cfg=dict(embed_dims=256, num_heads=8, dropout=0.0, batch_first=True),
                ffn_cfg=dict(embed_dims=256, feedforward_channels=2048),
            ),
        ),
        loss_cls=dict(
            type='mmdet.CrossEntropyLoss',
            loss_weight=2.0,
            class_weight=[1.0] * 80 + [0.1],  # the last: no object
        ),
        loss_mask=dict(type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=5.0),
        loss_dice=dict(type='mmdet.DiceLoss', naive_dice=True, eps=1.0, loss_weight=5.0),
    ),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead', num_things_classes=80, num_stuff_classes=0
    ),
    train_cfg=dict(
        num_points=12544,
        oversample_ratio=3.0,
        importance_sample_ratio=0.75,
        assigner=dict(
            type='mmdet.HungarianAssigner',
            match_costs=[
                dict(type='mmdet.ClassificationCost', weight=2.0),
                dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
                dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
            ],
        ),
        sampler=dict(type='mmdet.MaskPseudoSampler'),
    ),
    test_cfg=dict(
        panoptic_on=False,
        semantic_on=False,
        instance_on=True,
        max_per_image=100,
        iou_thr=0.8,
        filter_low_score=True,
    ),
)
