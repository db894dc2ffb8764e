"""12 epochs of DINO (arXiv 2203.03605; mmdet's settings): the backbone has a tenth of the rate."""

_base_ = ['default_runtime.py']

train_cfg = dict(type='ResumableEpochLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4, fused=True),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1)}),
)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[11], gamma=0.1)
]
