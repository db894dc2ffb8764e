"""XCiT-S12/16, fine-tuned at 384 pixels with a teacher; published: 84.7 % top-1 (table 1).

It starts from the distilled model at 224 pixels:

    tools/dist_train.sh configs/classify_xcit_s12_16_384.py 8
"""

_base_ = ['_base_/classify_xcit.py', '_base_/schedule_classify_30e.py']

model = dict(
    backbone=dict(
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_224_dist.pth',
        )
    ),
    teacher=dict(type='TimmTeacher', name='regnety_160.deit_in1k', pretrained=True, size=384),
)
train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        pipeline=[
            dict(type='LoadImage'),
            dict(type='TimmAugment', size=384),
            dict(type='PackImage'),
        ]
    ),
)
val_dataloader = dict(
    batch_size=64,
    dataset=dict(
        pipeline=[
            dict(type='LoadImage'),
            dict(type='CenterSquare', size=384),
            dict(type='PackImage'),
        ]
    ),
)
test_dataloader = val_dataloader
