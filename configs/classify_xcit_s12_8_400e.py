"""XCiT-S12/8 on ImageNet, 400 epochs; published: 83.4 % top-1 (tables 1 and D.1)."""

_base_ = ['classify_xcit_s12_16_400e.py']

model = dict(backbone=dict(patch_size=8))
