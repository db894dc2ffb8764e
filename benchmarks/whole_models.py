"""Detectors and segmentors of the benchmark, with random weights."""

from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from xcit_mm.base.environment import require_framework
from xcit_mm.base.errors import UserError
from xcit_mm.base.shipped import CONFIGS
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config
from xcit_mm.predict.fusion.fused_copy import fuse

BASES = {
    'detector': 'mask_rcnn_xcit_{}_{}_3x.py',
    'segmentor': 'sem_fpn_xcit_{}_{}_80k.py',
}
# The backbones of mmdet and mmseg, and the channels of their maps.
BACKBONES = {
    'resnet50': (dict(type='ResNet', depth=50, norm_eval=True), (256, 512, 1024, 2048)),
    'swin_t': (dict(type='SwinTransformer', drop_path_rate=0.0), (96, 192, 384, 768)),
    'convnext_t': (
        dict(type='mmseg.TIMMBackbone', model_name='convnext_tiny', pretrained=False),
        (96, 192, 384, 768),
    ),
}
NUM_BOXES = 8  # in an image of a training step


def build_whole(name: str, what: str, dtype: torch.dtype) -> nn.Module:
    """Build a model that maps images to predictions, or to losses for the task 'training'.

    ``xcit_mm_s12_16`` is Mask R-CNN or Semantic FPN as :func:`xcit_mm.load_model` runs it, with
    fused layers. ``resnet50`` and ``swin_t`` are the same models with a backbone of mmdet or mmseg,
    as these packages run them. A path names a config.
    """
    cfg = _config(name, what)
    model = build_model(cfg, 'cpu')
    if what == 'training':
        return _Losses(model.train())
    return _Predictions(model if name in BACKBONES else fuse(model, dtype), dtype)


def _config(name: str, what: str) -> Config:
    if name.endswith('.py'):
        return load_config(name)
    if name in BACKBONES:
        if name == 'convnext_t':
            require_framework('mmseg')  # mmdet has no such backbone
        cfg = load_config(CONFIGS / BASES[what].format('s12', 16))
        backbone, channels = BACKBONES[name]
        cfg.model.backbone, cfg.model.neck.in_channels = backbone, list(channels)
        return cfg
    arch, patch_size = name.split('_')[-2:]
    return load_config(CONFIGS / BASES[what].format(arch, patch_size))


class _Predictions(nn.Module):
    """From normalized images (B, 3, H, W) to objects or labels, in a dtype."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> list[Any]:
        with torch.autocast(images.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return self.model(images, _samples(self.model, images), mode='predict')


class _Losses(nn.Module):
    """From normalized images (B, 3, H, W) with random objects to the sum of the losses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        if not hasattr(model, 'roi_head'):
            raise UserError(
                f'{type(model).__name__}: only detectors with boxes and masks can be trained'
            )

    def forward(self, images: Tensor) -> tuple[Tensor]:
        losses = self.model(images, _with_objects(_samples(self.model, images)), mode='loss')
        return (self.model.parse_losses(losses)[0],)


def _samples(model: nn.Module, images: Tensor) -> list[Any]:
    size = tuple(images.shape[2:])
    info = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size)
    if hasattr(model, 'decode_head'):
        from mmseg.structures import SegDataSample as Sample
    else:
        from mmdet.structures import DetDataSample as Sample
    return [Sample(metainfo=dict(**info, scale_factor=(1.0, 1.0))) for _ in images]


def _with_objects(samples: list[Any]) -> list[Any]:
    """Give each image the same squares, with masks that fill them."""
    import numpy as np
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    for sample in samples:
        height, width = sample.img_shape
        side = min(height, width) // 4
        random = np.random.default_rng(0)
        corners = random.integers(0, (width - side, height - side), (NUM_BOXES, 2))
        masks = np.zeros((NUM_BOXES, height, width), np.uint8)
        for mask, (x, y) in zip(masks, corners, strict=True):
            mask[y : y + side, x : x + side] = 1
        boxes = torch.from_numpy(np.concatenate([corners, corners + side], axis=1)).float()
        sample.gt_instances = InstanceData(
            bboxes=boxes,
            labels=torch.zeros(NUM_BOXES, dtype=torch.long),
            masks=BitmapMasks(masks, height, width),
        )
    return samples
