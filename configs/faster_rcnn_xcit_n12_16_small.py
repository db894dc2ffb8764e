"""Faster R-CNN, XCiT-N12/16 with narrow heads: boxes in small images, few classes, from scratch.

It trains on the built-in shapes, to a box AP of about 75 in ten minutes on one core. A config that
inherits from it, such as tools/prepare_data.py writes for VOC, YOLO and others, names other data:

    tools/make_shapes.py data/shapes
    tools/train.py configs/faster_rcnn_xcit_n12_16_small.py
"""

_base_ = 'mask_rcnn_xcit_n12_16_shapes.py'

train_pipeline = [
    dict(type='LoadImage'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
val_evaluator = test_evaluator = dict(metric='bbox')

ignored = dict(assigner=dict(ignore_iof_thr=0.5))  # iscrowd: neither an object nor background
model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    rpn_head=dict(anchor_generator=dict(scales=[4, 8])),  # of 16 to 512 pixels
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
    train_cfg=dict(rpn=ignored, rcnn=ignored),
)
