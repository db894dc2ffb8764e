"""Semantic FPN on XCiT-N12/16: small images, a CPU, from scratch."""

_base_ = ['sem_fpn_xcit.py']

channels = 128
model = dict(
    backbone=dict(arch='n12', patch_size=16),
    neck=dict(in_channels=[channels] * 4, out_channels=channels),
    decode_head=dict(in_channels=[channels] * 4),
)
