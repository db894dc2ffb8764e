"""XCiT-T12/16 on ImageNet, 400 epochs; published: 77.1 % top-1 (tables 1 and D.1)."""

_base_ = ['classify_xcit_s12_16_400e.py']

model = dict(backbone=dict(arch='t12'))
