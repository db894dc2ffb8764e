"""DINO with XCiT-S12/16 on ImageNet without its labels, 300 epochs, as in table 3 of the paper.

Published on ImageNet: k-NN 76.0 %, linear probe 77.8 % (see docs/own_weights.md#probe-features):

    tools/dist_train.sh configs/pretrain_xcit_s12_16_300e.py 8
"""

_base_ = ['_base_/pretrain_xcit.py', '_base_/schedule_pretrain_300e.py']

data_root = 'data/imagenet/train/'

model = dict(backbone=dict(arch='s12', patch_size=16))
train_dataloader = dict(batch_size=32, drop_last=True, dataset=dict(data_root=data_root))
