"""COCO 2017 with the panoptic annotations and large-scale jitter in 1024 pixels."""

_base_ = ['coco_lsj.py']

data_help = dict(
    text=(
        'download the images with tools/prepare_data.py coco --root {root}; unpack '
        'http://images.cocodataset.org/annotations/panoptic_annotations_trainval2017.zip, and the '
        'two archives in its folder annotations, into {root}; or point to another folder with '
        '--cfg-options data_root=DIR'
    ),
)

load = dict(type='LoadPanoptic', with_bbox=True, with_mask=True, with_seg=True)
train_pipeline = [dict(type='LoadImage'), load, *_base_.jitter, dict(type='PackDetInputs')]
test_pipeline = [*_base_.test_pipeline[:2], load, *_base_.test_pipeline[3:]]

train_dataloader = dict(
    dataset=dict(
        type='CheckedPanopticDataset',
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(seg='annotations/panoptic_train2017/'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        type='CheckedPanopticDataset',
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(seg='annotations/panoptic_val2017/'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(
        type='PanopticQualityMetric',
        ann_file=_base_.data_root + 'annotations/panoptic_val2017.json',
        seg_prefix=_base_.data_root + 'annotations/panoptic_val2017/',
    ),
    _base_.val_evaluator,
]
test_evaluator = val_evaluator
