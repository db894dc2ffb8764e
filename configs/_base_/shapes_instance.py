"""The built-in shapes in COCO's layout (see xcit_mm/data/drawings/shapes.py)."""

data_root = 'data/shapes/'
data_help = dict(root=data_root, text='tools/make_shapes.py {root} draws it in seconds')
metainfo = dict(
    classes=('circle', 'square', 'triangle'),
    palette=[(220, 60, 60), (60, 160, 240), (250, 190, 40)],
)

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CheckedCocoDataset',
        data_root=data_root + 'coco/',
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CheckedCocoDataset',
        data_root=data_root + 'coco/',
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        metainfo=metainfo,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoAPMetric',
    ann_file=data_root + 'coco/annotations/instances_val2017.json',
    metric=['bbox', 'segm'],
)
test_evaluator = val_evaluator
