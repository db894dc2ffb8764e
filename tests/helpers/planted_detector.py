"""A RetinaNet that finds bright dots: what it finds is known without any training."""

import numpy as np
import torch
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from helpers.small_xcit import SMALL
from xcit_mm.base.environment import require_framework
from xcit_mm.config.load import load_config

SIDE = 32  # pixels of an object: of the only anchor, at stride 8


def dot_detector() -> nn.Module:
    """Build a RetinaNet whose scores are the brightness of the pixels at stride 8.

    The backbone passes the brightness on in channel 0: its layers add nothing. All else is the
    code of mmdet.
    """
    cfg = load_config('configs/retinanet_xcit_t12_16_1x.py').model
    cfg.backbone.update(arch=SMALL, patch_size=8, out_indices=(0, 1, 2, 3), out_norm=False)
    cfg.backbone.init_cfg = None
    cfg.neck.update(in_channels=[SMALL['embed_dim']] * 4, out_channels=4)
    cfg.neck.update(start_level=1, num_outs=3, add_extra_convs=False)
    cfg.bbox_head.update(in_channels=4, feat_channels=4, stacked_convs=1, num_classes=2)
    cfg.bbox_head.anchor_generator.update(
        octave_base_scale=4, scales_per_octave=1, ratios=[1.0], strides=[8, 16, 32]
    )
    cfg.test_cfg.update(nms=dict(type='nms', iou_threshold=0.1), max_per_img=5)
    require_framework('mmdet')
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            is_weight = name.endswith('weight') and tensor.ndim > 1
            tensor.zero_() if is_weight or 'gamma' in name or 'bias' in name else None
        for module in model.backbone.patch_embed.modules():
            if isinstance(module, nn.Conv2d):
                # The mean of the pixels of a patch; GELU changes it, but keeps its order.
                module.weight[0, : 3 if module.in_channels == 3 else 1] = 1 / 9
        model.backbone.pos_embeder.token_projection.weight.zero_()
        for conv in (model.neck.lateral_convs[0], model.neck.fpn_convs[0]):
            center = conv.conv.weight.shape[2] // 2
            conv.conv.weight[0, 0, center, center] = 1
        head = model.bbox_head
        head.cls_convs[0].conv.weight[0, 0, 1, 1] = 1
        head.retina_cls.weight[0, 0, 1, 1] = 50
        head.retina_cls.bias[0], head.retina_cls.bias[1] = -10, -30
    return model


def dots(size: tuple[int, int], centers: np.ndarray) -> torch.Tensor:
    """Draw an image (3, H, W) with a dot of 8 x 8 pixels at each center (y, x)."""
    image = torch.zeros(3, *size)
    for y, x in centers:
        image[:, y - 4 : y + 4, x - 4 : x + 4] = 10.0
    return image
