"""XCiT-N12/16 with the features of an XCiT that was trained on other drawings: for a CPU.

Minutes on two cores, after a teacher has been trained (see docs/own_weights.md#distillation):

    tools/make_shapes.py data/of_teacher --num-train 4000 --num-val 1 --seed 2
    tools/train.py configs/pretrain_xcit_n12_16_shapes.py --work-dir work_dirs/teacher \
        --cfg-options data_root=data/of_teacher/
    tools/make_shapes.py data/unlabeled --num-train 4000 --num-val 1 --seed 1
    tools/train.py configs/distill_xcit_n12_16_shapes.py \
        --cfg-options model.teacher.checkpoint=work_dirs/teacher/iter_1000.pth
"""

_base_ = ['_base_/distill_xcit.py', '_base_/schedule_distill_shapes.py']

data_root = 'data/unlabeled/'
data_help = dict(
    root=data_root,
    text='tools/make_shapes.py {root} --num-train 4000 --num-val 1 --seed 1 draws it',
)

model = dict(
    backbone=dict(arch='n12'),
    teacher=dict(
        type='ModuleTeacher',
        module=dict(type='ImageXCiT', arch='n12', patch_size=16),
        checkpoint='work_dirs/teacher/iter_1000.pth',
    ),
)
train_pipeline = [
    dict(type='LoadImage'),
    dict(type='CropAndFlip', size=128, scale=(0.4, 1.0)),
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
