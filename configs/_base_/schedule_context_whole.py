"""640 iterations on whole drawings, two per optimizer step, after some iterations on crops."""

_base_ = ['schedule_shapes.py']

train_cfg = dict(max_iters=640, val_interval=640)
optim_wrapper = dict(accumulative_counts=2)
# The learning rate falls late: the loss hardly changes until the key is found.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=440, end=640, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=2)
