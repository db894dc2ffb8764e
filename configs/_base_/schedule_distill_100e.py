"""100 epochs of distillation: 5 of warm-up, then a cosine."""

_base_ = ['schedule_distill.py']

epochs = 100
warmup = 5

train_cfg = dict(type='ResumableEpochLoop', max_epochs=epochs, val_interval=epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, end=warmup, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        begin=warmup,
        end=epochs,
        eta_min=1e-6,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(base_batch_size=1024)
default_hooks = dict(checkpoint=dict(interval=5))
