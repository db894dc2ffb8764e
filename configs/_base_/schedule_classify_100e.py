"""100 epochs of fine-tuning on other classes: 2 of warm-up, then a cosine."""

_base_ = ['schedule_classify.py']

epochs = 100
warmup = 2

train_cfg = dict(type='ResumableEpochLoop', max_epochs=epochs, val_interval=5)
optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, end=warmup, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        begin=warmup,
        end=epochs,
        eta_min=1e-6,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(base_batch_size=64)
default_hooks = dict(checkpoint=dict(interval=5))
