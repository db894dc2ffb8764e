"""Faster R-CNN, XCiT-T12/16, from the released COCO detector: boxes of few images.

The configs that tools/prepare_data.py writes inherit from it, with other data. By itself, it trains
on the built-in shapes:

    tools/make_shapes.py data/shapes
    tools/train.py configs/fine_tune_faster_rcnn_xcit_t12_16.py
Starts from: https://dl.fbaipublicfiles.com/xcit/coco/maskrcnn_xcit_tiny_12_p16.pth
"""

_base_ = 'fine_tune_mask_rcnn_xcit_t12_16.py'

load_boxes = dict(type='LoadAnnotations', with_bbox=True)
train_pipeline = [
    load_boxes if t['type'] == 'LoadAnnotations' else t for t in _base_.train_pipeline
]
test_pipeline = [load_boxes if t['type'] == 'LoadAnnotations' else t for t in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
val_evaluator = test_evaluator = dict(metric='bbox')
default_hooks = dict(
    checkpoint=dict(save_best='coco/bbox_mAP'), stopping=dict(monitor='coco/bbox_mAP')
)

model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
)
