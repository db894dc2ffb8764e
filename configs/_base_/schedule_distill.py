"""The optimizer of a distillation, and the hook that compares its teacher when it resumes."""

_base_ = ['image_runtime.py']

optim_wrapper = dict(
    type='AmpOptimWrapper',
    dtype='bfloat16',  # the features of some teachers exceed the range of float16
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=3),
    # Weights decay; biases, norms, LayerScale and the class token do not.
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(cls_token=dict(decay_mult=0.0)),
    ),
)
default_hooks = dict(same_teacher=dict(type='SameTeacherHook'))
