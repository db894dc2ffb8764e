"""50 epochs of Deformable DETR (arXiv 2010.04159; mmdet's settings).

Its learning rate, 2e-4 for 32 images per step, is the rate of schedule_dino scaled from 16 images.
"""

_base_ = ['schedule_dino.py']

train_cfg = dict(max_epochs=50)
slow = dict(lr_mult=0.1)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'sampling_offsets': slow, 'reference_points': slow})
)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=50, milestones=[40], gamma=0.1)
]
