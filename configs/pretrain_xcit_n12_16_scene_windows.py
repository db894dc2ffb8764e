"""DINO with XCiT-N12/16 on windows of large images without labels: drawings, for a CPU.

python benchmarks/drawings.py mosaic data/scenes/training --columns 16 --seed 1
tools/train.py configs/pretrain_xcit_n12_16_scene_windows.py
"""

_base_ = ['pretrain_xcit_n12_16_shapes.py']

data_root = 'data/scenes/'
data_help = dict(
    root=data_root,
    text='python benchmarks/drawings.py mosaic {root}training --columns 16 --seed 1, in a clone, '
    'draws it',
)

train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='UnlabeledWindows',
        data_root=data_root,
        data_prefix=dict(img='training'),
        img_suffix='mosaic.tif',
        window=160,
        pipeline=[
            # Pixels without data have the mean of the preprocessor.
            dict(type='ReadWindow', fill=[123.675, 116.28, 103.53]),
            *_base_.train_pipeline[1:],
        ],
    ),
)
