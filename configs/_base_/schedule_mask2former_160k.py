"""160,000 iterations; the optimizer is as in schedule_mask2former_50e."""

_base_ = ['schedule_mask2former_50e.py']

train_cfg = dict(max_iters=160000)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=160000),
]
