"""600 iterations for the built-in shapes: minutes on a CPU, without pretrained weights."""

_base_ = ['default_runtime.py']

train_cfg = dict(type='ResumableIterLoop', max_iters=600, val_interval=600)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='AmpOptimWrapper',  # float32 on a CPU that cannot multiply bfloat16
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=1),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.0)}),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=600, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(by_epoch=False, interval=50),
)
log_processor = dict(by_epoch=False, window_size=20)
