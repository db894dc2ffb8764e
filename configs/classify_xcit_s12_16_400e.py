"""XCiT-S12/16 on ImageNet, 400 epochs; published: 82.0 % top-1 (tables 1 and 2).

8 GPUs with 128 images each:

    tools/dist_train.sh configs/classify_xcit_s12_16_400e.py 8
"""

_base_ = ['_base_/classify_xcit.py', '_base_/schedule_classify_400e.py']
