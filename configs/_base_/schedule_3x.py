"""36 epochs with AdamW and mixed precision (paper, section 4.3; 8 GPUs with 2 images each)."""

_base_ = ['default_runtime.py']

train_cfg = dict(type='ResumableEpochLoop', max_epochs=36, val_interval=1)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.0)}),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
