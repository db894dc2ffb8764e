"""DINO with XCiT-N12/16 on built-in drawings without labels: for a CPU, from scratch.

It takes about twenty minutes of one busy core (see docs/own_weights.md#pretraining-without-labels):

    tools/make_shapes.py data/unlabeled --num-train 4000 --num-val 1 --seed 1
    tools/train.py configs/pretrain_xcit_n12_16_shapes.py
"""

_base_ = ['_base_/pretrain_xcit.py', '_base_/schedule_pretrain_shapes.py']

data_root = 'data/unlabeled/'
data_help = dict(
    root=data_root,
    text='tools/make_shapes.py {root} --num-train 4000 --num-val 1 --seed 1 draws it',
)

# So few and similar images need fewer outputs, a sharper teacher that follows faster, and crops
# that show more of an image than in DINO's recipe: with it, the outputs became the same for all.
model = dict(
    backbone=dict(arch='n12', patch_size=16),
    outputs=256,
    hidden=512,
    bottleneck=128,
    teacher_temperature=(0.02, 0.04),
    momentum=0.99,
)
train_pipeline = [
    dict(type='LoadImage'),
    dict(
        type='MultiCrop',
        global_size=96,
        global_scale=(0.5, 1.0),
        local_size=48,
        local_scale=(0.2, 0.5),
        num_local=4,
        color='bands',
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
