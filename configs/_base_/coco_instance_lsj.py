"""COCO 2017 with large-scale jitter and copy-paste (arXiv 2012.07177), at 1024x1024 pixels.

Objects of a second image, augmented alike, are pasted into each image. To use this with any other
config with masks, or at another size: tools/train.py CONFIG --cfg-options lsj=1024
"""

_base_ = ['coco_instance.py']

image_size = (1024, 1024)
load_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomResize', scale=image_size, ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=image_size, recompute_bbox=True, allow_negative_crop=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-2, 1e-2)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Pad', size=image_size, pad_val=114),
]
train_pipeline = [dict(type='CopyPaste', max_num_pasted=100), dict(type='PackDetInputs')]
train_dataloader = dict(
    batch_sampler=None,  # all images have one shape
    dataset=dict(
        _delete_=True,
        type='MultiImageMixDataset',
        dataset=dict(_base_.train_dataloader.dataset, pipeline=load_pipeline),
        pipeline=train_pipeline,
    ),
)
