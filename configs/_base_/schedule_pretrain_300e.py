"""300 epochs of DINO: 10 of warm-up, then a cosine; the weight decay rises (arXiv 2104.14294)."""

_base_ = ['schedule_pretrain.py']

epochs = 300
warmup = 10

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
    # From 0.04 to 0.4; parameters without decay stay without it.
    dict(
        type='CosineAnnealingParamScheduler',
        param_name='weight_decay',
        eta_min_ratio=10,
        end=epochs,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(checkpoint=dict(interval=5))
