"""Drawings in which a key decides the class of all shapes (benchmarks/context.py)."""

_base_ = ['shapes_semantic.py']

data_root = 'data/context/'
data_help = dict(
    root=data_root,
    text='python benchmarks/drawings.py context {root}, in a clone, draws it in seconds',
)
metainfo = dict(
    classes=('background', 'shape a', 'shape b'),
    palette=[(90, 90, 90), (220, 60, 60), (60, 160, 240)],
)

train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(type='RandomCrop', crop_size=(160, 160)),
    *_base_.train_pipeline[2:],
]

scenes = dict(
    data_root=data_root,
    img_suffix='.tif',
    seg_map_suffix='.tif',
    reduce_zero_label=False,
    metainfo=metainfo,
)
train_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='images/training', seg_map_path='labels/training'),
        pipeline=train_pipeline,
        **scenes,
    ),
)
val_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='images/validation', seg_map_path='labels/validation'),
        **scenes,
    ),
)
test_dataloader = val_dataloader
