"""Windows of one large drawing, with labels in an image (see benchmarks/mosaic.py)."""

_base_ = ['shapes_semantic.py']

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
    label_suffix='labels.tif',
    metainfo=_base_.metainfo,
)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='SceneWindows',
        data_prefix=dict(img='training', labels='training'),
        window=160,
        balanced=True,
        pipeline=[
            # Pixels without data have the mean of the preprocessor.
            dict(type='ReadWindow', fill=[123.675, 116.28, 103.53]),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs'),
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
            dict(type='OpenLabels', may_be_empty=True),
            dict(type='PackScene'),
        ],
        **scenes,
    ),
)
test_dataloader = val_dataloader
