"""80,000 iterations with AdamW (paper, section 4.4; 8 GPUs with 2 images each)."""

_base_ = ['default_runtime.py']

train_cfg = dict(type='ResumableIterLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01, fused=True),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.0)}),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=80000),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=8000))
log_processor = dict(by_epoch=False)
