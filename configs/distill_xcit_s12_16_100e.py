"""XCiT-S12/16 with the features of DINOv2 ViT-S/14, on ImageNet's images without labels.

Teacher and student get images of 224 pixels, a multiple of 14 and of 16. The first command
downloads the teacher, the second one has its file (see docs/own_weights.md#distillation):

    tools/dist_train.sh configs/distill_xcit_s12_16_100e.py 8
    tools/dist_train.sh configs/distill_xcit_s12_16_100e.py 8 --cfg-options \
        model.teacher.pretrained=False model.teacher.checkpoint=FILE

There is no published result of this recipe.
"""

_base_ = ['_base_/distill_xcit.py', '_base_/schedule_distill_100e.py']

data_root = 'data/imagenet/train/'
data_help = dict(root=data_root, text='point to a folder of images: --cfg-options data_root=DIR')

model = dict(
    teacher=dict(
        type='TimmTeacher',
        name='vit_small_patch14_dinov2.lvd142m',
        pretrained=True,
        size=224,
    ),
)
train_dataloader = dict(
    batch_size=128,
    num_workers='auto',
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(data_root=data_root, data_prefix=dict(img='')),
)
