"""DINO with XCiT-S12/8; published on ImageNet: k-NN 77.1 %, linear probe 79.2 % (table 3)."""

_base_ = ['pretrain_xcit_s12_16_300e.py']

model = dict(backbone=dict(patch_size=8))
