"""DINO with XCiT-N12/16 on built-in drawings without labels: for a CPU, from scratch.

It takes twelve minutes of one core (see docs/pretrain.md):

    tools/make_shapes.py data/unlabeled --num-train 4000 --num-val 1 --seed 1
    tools/train.py configs/pretrain_xcit_n12_16_shapes.py
"""

_base_ = ['_base_/pretrain_xcit.py', '_base_/schedule_pretrain_shapes.py']

data_root = 'data/unlabeled/'
data_help = dict(
    root=data_root,
    text='tools/make_shapes.py {root} --num-train 4000 --num-val 1 --seed 1 draws it',
)

model = dict(backbone=dict(arch='n12', patch_size=16), outputs=1024, hidden=512, bottleneck=128)
train_pipeline = [
    dict(type='LoadImage'),
    # Shapes are small: a crop of a twentieth of a drawing would often show none.
    dict(
        type='MultiCrop',
        global_size=96,
        global_scale=(0.3, 1.0),
        local_size=48,
        local_scale=(0.08, 0.3),
        num_local=4,
    ),
    dict(type='PackImage'),
]
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        data_root=data_root, data_prefix=dict(img='ade/images/training'), pipeline=train_pipeline
    ),
)
