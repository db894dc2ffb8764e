"""Mask R-CNN, XCiT-S12/8, COCO, 3x schedule.

Published: 47.0 box AP, 42.3 mask AP (paper, table 5), from the ImageNet weights distilled and
fine-tuned at 384. 43.17 M parameters. On 8 GPUs:

    torchrun --nproc_per_node=8 tools/train.py configs/mask_rcnn_xcit_s12_8_3x.py \
        --launcher pytorch --cfg-options model.backbone.init_cfg.type=Pretrained \
        model.backbone.init_cfg.checkpoint=https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth
"""

_base_ = [
    '_base_/mask_rcnn_xcit.py',
    '_base_/coco_instance.py',
    '_base_/schedule_3x.py',
]

model = dict(backbone=dict(arch='s12', patch_size=8))
