"""What runs on whole images have in common: pretraining, distillation and classifiers."""

_base_ = ['default_runtime.py']

default_scope = 'mmengine'  # neither mmdet nor mmseg
custom_imports = dict(imports=['xcit_mm'])
default_hooks = dict(describe=dict(type='DescribeHook'))
