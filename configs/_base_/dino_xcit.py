"""DINO with four scales on XCiT (arXiv 2203.03605; mmdet's settings)."""

_base_ = ['deformable_detr_xcit.py']

model = dict(
    type='DINO',
    num_queries=900,
    encoder=dict(
        layer_cfg=dict(
            self_attn_cfg=dict(dropout=0.0),
            ffn_cfg=dict(feedforward_channels=2048, ffn_drop=0.0),
        )
    ),
    decoder=dict(
        layer_cfg=dict(
            self_attn_cfg=dict(dropout=0.0),
            cross_attn_cfg=dict(dropout=0.0),
            ffn_cfg=dict(feedforward_channels=2048, ffn_drop=0.0),
        )
    ),
    positional_encoding=dict(offset=0.0, temperature=20),
    bbox_head=dict(type='DINOHead', loss_cls=dict(loss_weight=1.0)),
    dn_cfg=dict(
        label_noise_scale=0.5,
        box_noise_scale=1.0,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=100),
    ),
    test_cfg=dict(max_per_img=300),
)
