"""The built-in shapes in the layout of COCO's panoptic annotations: three things, one stuff."""

_base_ = ['shapes_instance.py']

data_root = 'data/shapes/'
metainfo = dict(
    classes=('circle', 'square', 'triangle', 'background'),
    thing_classes=('circle', 'square', 'triangle'),
    stuff_classes=('background',),
    palette=[(220, 60, 60), (60, 160, 240), (250, 190, 40), (90, 90, 90)],
)

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadPanoptic', with_bbox=True, with_mask=True, with_seg=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='LoadPanoptic', with_bbox=True, with_mask=True, with_seg=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]

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
        ann_file=data_root + 'coco/annotations/panoptic_val2017.json',
        seg_prefix=data_root + 'coco/annotations/panoptic_val2017/',
    ),
    dict(
        type='CocoAPMetric',
        ann_file=data_root + 'coco/annotations/instances_val2017.json',
        metric=['bbox', 'segm'],
    ),
]
test_evaluator = val_evaluator
