"""The built-in shapes in ADE20k's layout (see xcit_mm/data/drawings/shapes.py)."""

data_root = 'data/shapes/'
data_help = dict(root=data_root, text='tools/make_shapes.py {root} draws it in seconds')
metainfo = dict(
    classes=('background', 'circle', 'square', 'triangle'),
    palette=[(90, 90, 90), (220, 60, 60), (60, 160, 240), (250, 190, 40)],
)

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadLabels'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadLabels'),
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root + 'ade/',
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        reduce_zero_label=True,
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
        type='BaseSegDataset',
        data_root=data_root + 'ade/',
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        reduce_zero_label=True,
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='ClassIoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
