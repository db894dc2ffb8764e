"""Losses, gradients and weights stay finite in mixed precision, whatever is in the images."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch import nn

from xcit_mm import environment
from xcit_mm.engine.config.load import load_config

STEPS = 50
IGNORED = 255  # a pixel without a label


def build(config: str, **options: Any) -> nn.Module:
    cfg = load_config(ROOT / 'configs' / f'{config}.py', {'pretrained': None, **options})
    for part in ('models', 'datasets', 'evaluation', 'visualization'):
        environment.require(f'{cfg.default_scope}.{part}')
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model.train()


def detector() -> nn.Module:
    return build('mask_rcnn_xcit_n12_16_shapes')


def segmentor() -> nn.Module:
    """UperNet with 64 channels, on the smallest arch."""
    channels = {
        'model.backbone.arch': 'n12',
        'model.decode_head.in_channels': [128] * 4,
        'model.decode_head.channels': 64,
        'model.auxiliary_head.in_channels': 128,
        'model.auxiliary_head.channels': 64,
    }
    return build('upernet_xcit_t12_16_160k', **channels)


def images(size: int) -> list[torch.Tensor]:
    return list(torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8))


def objects(num: int, size: int) -> dict[str, list]:
    """Two images with rectangles, the smallest one pixel wide, some of them the same."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    samples = []
    for i in range(2):
        corners = np.sort(np.random.default_rng(i).integers(0, size, (num, 2, 2)), axis=1)
        corners[:, 1] += 1
        masks = np.zeros((num, size, size), dtype=np.uint8)
        for mask, ((left, top), (right, bottom)) in zip(masks, corners, strict=True):
            mask[top:bottom, left:right] = 1
        instances = InstanceData(
            bboxes=torch.from_numpy(corners.reshape(num, 4)).float(),
            labels=torch.arange(num) % 3,
            masks=BitmapMasks(masks, size, size),
        )
        shape = dict(img_shape=(size, size), ori_shape=(size, size), scale_factor=(1.0, 1.0))
        samples.append(DetDataSample(metainfo=shape, gt_instances=instances))
    return dict(inputs=images(size), data_samples=samples)


def labels(values: torch.Tensor) -> dict[str, list]:
    from mmseg.structures import SegDataSample

    size = values.shape[-1]
    shape = dict(img_shape=(size, size), ori_shape=(size, size))
    samples = [SegDataSample(metainfo=shape, gt_sem_seg=PixelData(data=v[None])) for v in values]
    return dict(inputs=images(size), data_samples=samples)


def detection_batches() -> list[dict[str, list]]:
    return [objects(0, 64), objects(200, 64), objects(0, 32), objects(3, 32), objects(200, 32)]


def segmentation_batches() -> list[dict[str, list]]:
    return [
        labels(torch.full((2, 64, 64), IGNORED)),
        labels(torch.arange(2 * 64 * 64).reshape(2, 64, 64) % 150),
        labels(torch.full((2, 32, 32), 7)),
        labels(torch.randint(0, 150, (2, 32, 32))),
    ]


@pytest.mark.parametrize(
    ('build_model', 'make_batches'),
    [(detector, detection_batches), (segmentor, segmentation_batches)],
)
def test_losses_stay_finite_in_bfloat16(build_model, make_batches):
    model, batches = build_model(), make_batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        if hasattr(model.data_preprocessor, 'size'):
            model.data_preprocessor.size = batch['inputs'][0].shape[1:]
        optimizer.zero_grad()
        with torch.autocast('cpu', torch.bfloat16):
            data = model.data_preprocessor(batch, training=True)
            losses = model(**data, mode='loss')
        total, _ = model.parse_losses(losses)
        values = {name: sum(v) if isinstance(v, list) else v for name, v in losses.items()}
        assert all(v.isfinite().all() for v in values.values()), (step, values)
        total.backward()
        for name, parameter in model.named_parameters():
            # A process that gives none would let the others wait, in a training on many GPUs.
            assert parameter.grad is not None, (step, name)
            assert parameter.grad.isfinite().all(), (step, name)
        optimizer.step()
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name
