"""Mask2Former, XCiT-N12/16 with a narrow head, labels of the built-in shapes: for a CPU.

It takes about half an hour on one core, less on two:

    tools/make_shapes.py data/shapes
    tools/train.py configs/mask2former_semantic_xcit_n12_16_shapes.py
"""

_base_ = [
    '_base_/mask2former_semantic_xcit.py',
    '_base_/shapes_semantic.py',
    '_base_/schedule_mask2former_shapes.py',
]

channels, classes = 64, 4
attention = dict(embed_dims=channels, num_heads=4)
feed_forward = dict(embed_dims=channels, feedforward_channels=4 * channels)
positions = dict(num_feats=channels // 2)
model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=dict(arch='n12', patch_size=16),
    decode_head=dict(
        in_channels=[128] * 4,
        feat_channels=channels,
        out_channels=channels,
        num_classes=classes,
        num_things_classes=classes,
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
        loss_cls=dict(class_weight=[1.0] * classes + [0.1]),
        train_cfg=dict(num_points=1024),
    ),
)
