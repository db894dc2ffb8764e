"""A number for each pixel with Semantic FPN on XCiT-N12/16: small images, a CPU, from scratch."""

_base_ = ['encoder_decoder_xcit.py']

custom_imports = dict(
    imports=[
        'xcit_mm',
        'xcit_mm.data.datasets.height_dataset',
        'xcit_mm.train.metrics.height_metric',
        'xcit_mm.network.models.aligned_segmentors',
        'xcit_mm.network.models.height_head',
        'xcit_mm.network.models.height_losses',
    ]
)

channels = 128
model = dict(
    type='AlignedDepthEstimator',
    backbone=dict(arch='n12', patch_size=16),
    neck=dict(type='FPN', in_channels=[channels] * 4, out_channels=channels, num_outs=4),
    decode_head=dict(
        type='HeightHead',
        in_channels=[channels] * 4,
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0,  # it would change the mean of the heights
        norm_cfg=dict(type='BN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='LabeledL1Loss'),
    ),
)
