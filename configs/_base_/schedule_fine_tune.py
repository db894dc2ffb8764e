"""Fine-tuning on few images: a run of minutes, which keeps the best of its ten validations.

Lower layers learn more slowly (xcit_mm/train/layer_decay.py). A config that inherits from it names
the metric of the best checkpoint, as in configs/fine_tune_mask_rcnn_xcit_t12_16.py.
"""

_base_ = ['default_runtime.py']

max_iters = 400
train_cfg = dict(type='ResumableIterLoop', max_iters=max_iters, val_interval=40)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='AmpOptimWrapper',  # float32 on a CPU that cannot multiply bfloat16
    constructor='LayerDecayConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    paramwise_cfg=dict(layer_decay=0.8, custom_keys={'norm': dict(decay_mult=0.0)}),
    clip_grad=dict(max_norm=1),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=20, end=max_iters, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(by_epoch=False, interval=40, max_keep_ckpts=2),
    stopping=dict(type='ResumableEarlyStoppingHook', patience=5),
)
log_processor = dict(by_epoch=False, window_size=20)
