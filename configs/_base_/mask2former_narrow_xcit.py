"""Mask2Former with a narrow head on XCiT-N12/16: few things, small images, a CPU, from scratch."""

_base_ = ['mask2former_xcit.py', 'mask2former_narrow.py']

things = 3
model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(arch='n12', patch_size=16),
    panoptic_head=dict(
        _base_.narrow_head,
        num_things_classes=things,
        loss_cls=dict(class_weight=[1.0] * things + [0.1]),
    ),
    panoptic_fusion_head=dict(num_things_classes=things),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20),
)
