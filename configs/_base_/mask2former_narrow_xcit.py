"""Mask2Former with a narrow head on XCiT-N12/16: few things, small images, a CPU, from scratch."""

_base_ = ['mask2former_xcit.py']

channels, things = 64, 3
attention = dict(embed_dims=channels, num_heads=4)
feed_forward = dict(embed_dims=channels, feedforward_channels=4 * channels)
positions = dict(num_feats=channels // 2)
model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(arch='n12', patch_size=16),
    panoptic_head=dict(
        in_channels=[128] * 4,
        feat_channels=channels,
        out_channels=channels,
        num_things_classes=things,
        num_queries=20,
        pixel_decoder=dict(
            norm_cfg=dict(num_groups=8),
            encoder=dict(
                num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=feed_forward)
            ),
            positional_encoding=positions,
        ),
        positional_encoding=positions,
        transformer_decoder=dict(
            num_layers=3,
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=feed_forward),
        ),
        loss_cls=dict(class_weight=[1.0] * things + [0.1]),
    ),
    panoptic_fusion_head=dict(num_things_classes=things),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20),
)
