"""A classifier of images in folders of classes, with DeiT's augmentation (arXiv 2012.12877)."""

data_root = 'data/imagenet/'
data_help = dict(root=data_root, text='put a folder for each class into {root}train and {root}val')

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ImagePreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    # As many classes as there are folders, which the tools count.
    backbone=dict(type='ImageXCiT', arch='s12', patch_size=16, num_classes=None),
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, switch_prob=0.5, label_smoothing=0.1),
)
train_dataloader = dict(
    batch_size=128,
    drop_last=True,  # images are mixed in pairs
    num_workers='auto',
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='RepeatedSampler', shuffle=True),
    dataset=dict(
        type='ClassFolders',
        data_root=data_root,
        data_prefix=dict(img='train'),
        pipeline=[
            dict(type='LoadImage'),
            dict(type='TimmAugment', size=224),
            dict(type='PackImage'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers='auto',
    persistent_workers=True,
    timeout=600,  # seconds without a batch that end the run
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ClassFolders',
        data_root=data_root,
        data_prefix=dict(img='val'),
        pipeline=[
            dict(type='LoadImage'),
            dict(type='CenterSquare', size=224),
            dict(type='PackImage'),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='AccuracyMetric')
test_evaluator = val_evaluator
