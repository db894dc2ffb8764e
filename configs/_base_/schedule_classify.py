"""The optimizer of DeiT (arXiv 2012.12877), with which XCiT is trained (section 4.1)."""

_base_ = ['image_runtime.py']

val_cfg = dict(type='SameSizeValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='AmpOptimWrapper',
    dtype='bfloat16',  # logits of some teachers exceed the range of float16
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    # Weights decay; biases, norms, LayerScale and the class token do not.
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(cls_token=dict(decay_mult=0.0)),
    ),
)
auto_scale_lr = dict(base_batch_size=512)
default_hooks = dict(same_teacher=dict(type='SameTeacherHook'))
