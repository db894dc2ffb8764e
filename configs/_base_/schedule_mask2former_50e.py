"""50 epochs of COCO as iterations, AdamW (arXiv 2112.01527; 8 GPUs with 2 images each)."""

_base_ = ['default_runtime.py']

train_cfg = dict(type='ResumableIterLoop', max_iters=368750, val_interval=5000)
val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={  # the longest key that fits decides
            'backbone': dict(lr_mult=0.1),
            **{
                f'.norm{i}.{name}': dict(lr_mult=0.1, decay_mult=0.0)  # of the backbone only
                for i in (1, 2, 3)
                for name in ('weight', 'bias')
            },
            'query_embed': dict(decay_mult=0.0),
            'query_feat': dict(decay_mult=0.0),
            'level_embed': dict(decay_mult=0.0),
        },
    ),
)
param_scheduler = [
    dict(
        type='MultiStepLR',
        by_epoch=False,
        begin=0,
        end=368750,
        milestones=[327778, 355092],
        gamma=0.1,
    ),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=5000))
log_processor = dict(by_epoch=False)
