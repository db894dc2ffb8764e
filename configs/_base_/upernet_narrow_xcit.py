"""UperNet with a narrow head on XCiT-N12/16: small images, a CPU, from scratch."""

_base_ = ['upernet_xcit.py']

model = dict(
    backbone=dict(arch='n12', patch_size=16),
    decode_head=dict(in_channels=[128] * 4, channels=64),
    auxiliary_head=None,
)
