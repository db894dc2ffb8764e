"""COCO 2017 with the panoptic annotations and large-scale jitter in 1024 pixels."""

_base_ = ['coco_lsj.py']

data_root = 'data/coco/'
data_help = dict(
    text=(
        'download the images with tools/prepare_data.py coco --root {root}; unpack '
        'http://images.cocodataset.org/annotations/panoptic_annotations_trainval2017.zip, and the '
        'two archives in its folder annotations, into {root}; or point to another folder with '
        '--cfg-options data_root=DIR'
    ),
)

load_panoptic = dict(type='LoadPanoptic', with_bbox=True, with_mask=True, with_seg=True)
train_pipeline = [
    dict(type='LoadImage'),
    load_panoptic,
    *_base_.jitter,
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    load_panoptic,
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
        ann_file=data_root + 'annotations/panoptic_val2017.json',
        seg_prefix=data_root + 'annotations/panoptic_val2017/',
    ),
    dict(
        type='CocoAPMetric',
        ann_file=data_root + 'annotations/instances_val2017.json',
        metric=['bbox', 'segm'],
    ),
]
test_evaluator = val_evaluator
