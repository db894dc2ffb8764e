"""400 epochs (section 4.1): 5 of warm-up, then a cosine."""

_base_ = ['schedule_classify.py']

epochs = 400
warmup = 5

train_cfg = dict(type='ResumableEpochLoop', max_epochs=epochs, val_interval=10)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, end=warmup, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        begin=warmup,
        end=epochs,
        eta_min=1e-5,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(checkpoint=dict(interval=5))
