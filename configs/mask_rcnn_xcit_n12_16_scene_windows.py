"""Mask R-CNN, XCiT-N12/16, on windows of a large drawing, evaluated on a whole one, streamed.

It reaches a box AP of 64 in seventeen minutes on one core (see docs/scenes.md):

    python benchmarks/drawings.py mosaic data/scenes/training --columns 16 --seed 1
    python benchmarks/drawings.py mosaic data/scenes/validation --columns 8 --seed 2
    tools/train.py configs/mask_rcnn_xcit_n12_16_scene_windows.py
"""

_base_ = ['mask_rcnn_xcit_n12_16_shapes.py']

data_root = 'data/scenes/'
data_help = dict(
    root=data_root,
    text='python benchmarks/drawings.py mosaic {root}training --columns 16 --seed 1 and python '
    'benchmarks/drawings.py mosaic {root}validation --columns 8 --seed 2, in a clone, draw it in '
    'seconds',
)
stream = dict(train=False, memory='1GiB')  # whole scenes are evaluated, and windows are trained

scenes = dict(
    data_root=data_root,
    img_suffix='mosaic.tif',
    label_suffix='objects.geojson',
    with_objects=True,
    metainfo=_base_.metainfo,
)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='SceneWindows',
        data_prefix=dict(img='training', labels='training'),
        window=160,
        pipeline=[
            # Pixels without data have the mean of the preprocessor.
            dict(type='ReadWindow', fill=[123.675, 116.28, 103.53]),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackDetInputs'),
        ],
        **scenes,
    ),
)
val_dataloader = dict(
    # Windows are read in the process of the model.
    num_workers=0,
    persistent_workers=False,
    timeout=0,
    dataset=dict(
        _delete_=True,
        type='Scenes',
        data_prefix=dict(img='validation', labels='validation'),
        test_mode=True,
        pipeline=[
            dict(type='OpenImage'),
            dict(type='LoadObjects', with_mask=True),
            dict(type='PackScene'),
        ],
        **scenes,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=None)  # the objects of the dataset are the ground truth
test_evaluator = val_evaluator

ignored = dict(assigner=dict(ignore_iof_thr=0.5))  # objects that windows cut are not background
model = dict(train_cfg=dict(rpn=ignored, rcnn=ignored))
