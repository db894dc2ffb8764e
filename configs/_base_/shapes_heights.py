"""Drawings of cones, domes and boxes on hills (see benchmarks/terrain.py)."""

data_root = 'data/heights/'
data_help = dict(
    root=data_root,
    text='python benchmarks/drawings.py heights {root}, in a clone, draws it in seconds',
)

# Without RandomFlip: the light comes from the left in all drawings.
pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadHeights'),
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='HeightDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/training', seg_map_path='heights/training'),
        pipeline=pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='HeightDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/validation', seg_map_path='heights/validation'),
        pipeline=pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='HeightMetric')
test_evaluator = val_evaluator
