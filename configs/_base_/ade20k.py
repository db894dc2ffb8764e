"""ADE20k with 150 classes, crops of 512 pixels (paper, section 4.4)."""

data_root = 'data/ade/ADEChallengeData2016/'
data_help = dict(
    root=data_root,
    text=(
        'download it with tools/prepare_data.py ade20k, or point to another folder with '
        '--cfg-options data_root=DIR'
    ),
)

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadLabels', reduce_zero_label=True),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='LoadLabels', reduce_zero_label=True),  # after Resize, which would resize them
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=2,
    num_workers='auto',
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers='auto',
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='ClassIoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
