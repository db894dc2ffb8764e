"""Mask2Former on XCiT for the 80 things and 53 kinds of stuff of COCO."""

_base_ = ['mask2former_xcit.py']

model = dict(
    data_preprocessor=dict(
        pad_seg=True,
        seg_pad_value=255,
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=(1024, 1024),
                pad_mask=True,
                pad_seg=True,
                seg_pad_value=255,
            )
        ],
    ),
    panoptic_head=dict(num_stuff_classes=53, loss_cls=dict(class_weight=[1.0] * 133 + [0.1])),
    panoptic_fusion_head=dict(num_stuff_classes=53),
    test_cfg=dict(panoptic_on=True),
)
