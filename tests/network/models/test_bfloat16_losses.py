"""Losses, gradients and weights stay finite in mixed precision, whatever is in the images."""

import pytest
import torch
from helpers.random_weights import DETECTOR
from mmengine.structures import PixelData
from torch import nn

from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config

UPERNET = 'configs/upernet_xcit_t12_16_160k.py'
STEPS = 20
IGNORED = 255  # a pixel without a label


def objects(numbers: list[int], side: int) -> dict[str, list]:
    from mmdet.testing import demo_mm_inputs

    batch = demo_mm_inputs(2, (3, side, side), numbers, num_classes=3, with_mask=True)
    for sample in batch['data_samples']:
        instances = sample.gt_instances
        if len(instances):  # as wide as a pixel, some of them the same
            instances.bboxes[1::2, 2:] = instances.bboxes[1::2, :2] + 1
            instances.bboxes[2::4] = instances.bboxes[0]
    return batch


def labels(values: torch.Tensor) -> dict[str, list]:
    from mmseg.structures import SegDataSample

    size = values.shape[-2:]
    shape = dict(img_shape=size, ori_shape=size)
    samples = [SegDataSample(metainfo=shape, gt_sem_seg=PixelData(data=v[None])) for v in values]
    images = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    return dict(inputs=list(images), data_samples=samples)


def detector() -> tuple[nn.Module, list[dict[str, list]]]:
    model = build_model(load_config(DETECTOR), 'cpu')
    batches = [([0, 0], 64), ([200, 0], 64), ([0, 0], 32), ([3, 3], 32), ([200, 200], 32)]
    return model, [objects(*arguments) for arguments in batches]


def upernet() -> tuple[nn.Module, list[dict[str, list]]]:
    """Return UperNet with 64 channels on the smallest arch."""
    options = {'model.backbone.arch': 'n12', 'pretrained': None}
    for head, in_channels in (('decode_head', [128] * 4), ('auxiliary_head', 128)):
        options |= {f'model.{head}.in_channels': in_channels, f'model.{head}.channels': 64}
    model = build_model(load_config(UPERNET, options), 'cpu')
    maps = [
        torch.full((2, 64, 64), IGNORED),
        torch.arange(2 * 64 * 64).reshape(2, 64, 64) % 150,
        torch.full((2, 32, 32), 7),
        torch.randint(0, 150, (2, 32, 32)),
    ]
    return model, [labels(values) for values in maps]


@pytest.mark.slow
@pytest.mark.parametrize('make', [detector, upernet])
def test_losses_stay_finite_in_bfloat16(make):
    model, batches = make()
    model.init_weights()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        if hasattr(model.data_preprocessor, 'size'):
            model.data_preprocessor.size = batch['inputs'][0].shape[1:]
        optimizer.zero_grad()
        with torch.autocast('cpu', torch.bfloat16):
            losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
        total, values = model.parse_losses(losses)
        assert all(v.isfinite().all() for v in values.values()), (step, values)
        total.backward()
        for name, parameter in model.named_parameters():
            # A process without a gradient would let the others wait, in a training on many GPUs.
            assert parameter.grad is not None and parameter.grad.isfinite().all(), (step, name)
        optimizer.step()
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name
