"""Mask R-CNN, XCiT-T12/16, from the released COCO detector: boxes and masks of few images.

The configs that tools/prepare_data.py writes inherit from it, with other data. By itself, it trains
on the built-in shapes:

    tools/make_shapes.py data/shapes
    tools/train.py configs/fine_tune_mask_rcnn_xcit_t12_16.py
Starts from: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_tiny_12_p16.pth
"""

_base_ = [
    '_base_/mask_rcnn_xcit.py',
    '_base_/shapes_instance.py',
    '_base_/schedule_fine_tune.py',
]
load_from = 'https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_tiny_12_p16.pth'

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomResize', scale=(320, 320), ratio_range=(0.75, 1.25), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(320, 320), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(batch_size=4, dataset=dict(pipeline=train_pipeline))
val_dataloader = test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
default_hooks = dict(
    checkpoint=dict(save_best='coco/segm_mAP'), stopping=dict(monitor='coco/segm_mAP')
)

heads = dict(num_classes=3)
ignored = dict(assigner=dict(ignore_iof_thr=0.5))  # iscrowd: neither an object nor background
model = dict(
    backbone=dict(arch='t12', patch_size=16, norm_eval=True, frozen_stages=4),
    neck=dict(in_channels=[192] * 4),
    roi_head=dict(bbox_head=heads, mask_head=heads),
    train_cfg=dict(
        rpn=ignored,
        rpn_proposal=dict(nms_pre=1000, max_per_img=500),
        # Of 512 regions, nearly all are background where objects are few.
        rcnn=dict(**ignored, sampler=dict(num=128)),
    ),
    test_cfg=dict(rpn=dict(max_per_img=300)),
)
