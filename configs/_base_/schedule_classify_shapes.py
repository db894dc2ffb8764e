"""400 iterations for drawn classes: minutes on a CPU."""

_base_ = ['schedule_classify.py']

iterations = 400

train_cfg = dict(type='ResumableIterLoop', max_iters=iterations, val_interval=iterations)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=40),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=40, end=iterations, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=32)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(by_epoch=False, interval=100),
)
log_processor = dict(by_epoch=False, window_size=20)
