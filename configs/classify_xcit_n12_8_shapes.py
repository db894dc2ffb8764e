"""XCiT-N12/8 on ten drawn classes, from scratch: minutes on a CPU.

See docs/own_weights.md#classifiers.

tools/make_shapes.py data/shape_classes --classes
tools/train.py configs/classify_xcit_n12_8_shapes.py
"""

_base_ = ['_base_/classify_xcit.py', '_base_/schedule_classify_shapes.py']

data_root = 'data/shape_classes/'
data_help = dict(root=data_root, text='tools/make_shapes.py {root} --classes draws it in seconds')

model = dict(backbone=dict(arch='n12', patch_size=8), mixup=None)
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    drop_last=False,
    sampler=dict(_delete_=True, type='InfiniteSampler', shuffle=True),
    dataset=dict(
        data_root=data_root,
        pipeline=[
            dict(type='LoadImage'),
            dict(type='CropAndFlip', size=64, scale=(0.6, 1.0)),
            dict(type='PackImage'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root=data_root,
        pipeline=[
            dict(type='LoadImage'),
            dict(type='CenterSquare', size=64),
            dict(type='PackImage'),
        ],
    ),
)
test_dataloader = val_dataloader
