"""The built-in shapes in the layout of COCO's panoptic annotations: three things, one stuff."""

_base_ = ['shapes_instance.py']

metainfo = dict(
    classes=('circle', 'square', 'triangle', 'background'),
    thing_classes=('circle', 'square', 'triangle'),
    stuff_classes=('background',),
    palette=[(220, 60, 60), (60, 160, 240), (250, 190, 40), (90, 90, 90)],
)

load = dict(type='LoadPanoptic', with_bbox=True, with_mask=True, with_seg=True)
train_pipeline = [_base_.train_pipeline[0], load, *_base_.train_pipeline[2:]]
test_pipeline = [*_base_.test_pipeline[:2], load, *_base_.test_pipeline[3:]]

train_dataloader = dict(
    dataset=dict(
        type='CheckedPanopticDataset',
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(seg='annotations/panoptic_train2017/'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type='CheckedPanopticDataset',
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(seg='annotations/panoptic_val2017/'),
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(
        type='PanopticQualityMetric',
        ann_file=_base_.data_root + 'coco/annotations/panoptic_val2017.json',
        seg_prefix=_base_.data_root + 'coco/annotations/panoptic_val2017/',
    ),
    _base_.val_evaluator,
]
test_evaluator = val_evaluator
