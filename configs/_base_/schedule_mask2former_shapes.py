"""2,500 iterations for the built-in shapes; everything else is as in schedule_shapes."""

_base_ = ['schedule_shapes.py']

train_cfg = dict(max_iters=2500, val_interval=500)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=100, end=2500, eta_min=1e-6),
]
