"""1,000 iterations of distillation for built-in drawings: minutes on a CPU."""

_base_ = ['schedule_distill.py']

iterations = 1000

train_cfg = dict(type='ResumableIterLoop', max_iters=iterations, val_interval=iterations)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=iterations, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=32)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(by_epoch=False, interval=100),
)
log_processor = dict(by_epoch=False, window_size=20)
