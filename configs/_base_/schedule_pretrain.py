"""The optimizer of DINO (arXiv 2104.14294) and the hooks of its teacher."""

_base_ = ['image_runtime.py']

optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=0.04, fused=True),
    clip_grad=dict(max_norm=3),
    # Weights decay; biases, norms, LayerScale and the class token do not.
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(cls_token=dict(decay_mult=0.0)),
    ),
)
auto_scale_lr = dict(base_batch_size=256)
default_hooks = dict(
    teacher=dict(type='MomentumTeacherHook'),
    collapse=dict(type='CollapseHook'),
)
