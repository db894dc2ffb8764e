"""XCiT-S12/16 from its ImageNet weights to other classes, as in table D.2 of the paper.

The folder has train/CLASS and val/CLASS; the classes are counted:

    tools/train.py configs/classify_xcit_s12_16_transfer.py --cfg-options data_root=DIR
"""

_base_ = ['_base_/classify_xcit.py', '_base_/schedule_classify_100e.py']

model = dict(
    backbone=dict(
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p16_224_dist.pth',
        )
    )
)
train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)
)
