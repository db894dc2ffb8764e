"""DINO with XCiT-N12/16 on images of 13 bands without labels: built-in drawings, for a CPU.

tools/make_shapes.py data/unlabeled_13bands --bands 13 --num-train 2000 --num-val 1 --seed 1
tools/train.py configs/pretrain_xcit_n12_16_13bands_shapes.py
"""

_base_ = ['pretrain_xcit_n12_16_shapes.py']

bands = 13
data_root = 'data/unlabeled_13bands/'
data_help = dict(
    root=data_root,
    text=f'tools/make_shapes.py {{root}} --bands {bands} --num-train 2000 --num-val 1 --seed 1 '
    'draws it',
)

model = dict(
    data_preprocessor=dict(mean=[128.0] * bands, std=[58.0] * bands, bgr_to_rgb=False),
    backbone=dict(in_channels=bands),
)
train_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        suffixes=('.tif',),
        pipeline=[
            dict(type='LoadMultiband', channels=bands, rgb=(0, 6, 12)),
            *_base_.train_pipeline[1:],
        ],
    ),
)
