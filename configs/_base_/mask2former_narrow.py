"""The sizes of a narrow head of Mask2Former on XCiT-N12: small images, a CPU, from scratch."""

channels = 64
attention = dict(embed_dims=channels, num_heads=4)
feed_forward = dict(embed_dims=channels, feedforward_channels=4 * channels)
positions = dict(num_feats=channels // 2)
narrow_head = dict(
    in_channels=[128] * 4,
    feat_channels=channels,
    out_channels=channels,
    num_queries=20,
    pixel_decoder=dict(
        norm_cfg=dict(num_groups=8),
        encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=feed_forward)),
        positional_encoding=positions,
    ),
    positional_encoding=positions,
    transformer_decoder=dict(
        num_layers=3,
        layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=feed_forward),
    ),
)
