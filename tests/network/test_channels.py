"""Backbones and preprocessors take images with any number of channels."""

import importlib

import pytest
import torch
from helpers.small_xcit import small_xcit
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData

from xcit_mm.base import environment
from xcit_mm.base.errors import ArgumentError

BANDS = 13


@pytest.mark.parametrize('in_channels', [1, BANDS])
def test_a_backbone_takes_its_channels_and_trains_all_of_them(in_channels):
    model = small_xcit(in_channels=in_channels)
    maps = model(torch.randn(1, in_channels, 64, 96))
    sum(x.square().sum() for x in maps).backward()
    gradient = model.patch_embed.proj[0][0].weight.grad
    assert gradient.shape[1] == in_channels and gradient.abs().amax((0, 2, 3)).min() > 0
    for shape in ((1, 3, 64, 96), (in_channels, 64, 96)):
        with pytest.raises(ArgumentError, match=rf'are not .* H, W\), in_channels={in_channels}'):
            model(torch.zeros(shape))


@pytest.mark.parametrize(
    ('scope', 'base', 'sample_type', 'size'),
    [
        ('mmdet', 'DetDataPreprocessor', 'DetDataSample', dict(pad_size_divisor=32)),
        ('mmseg', 'SegDataPreProcessor', 'SegDataSample', dict(size=(64, 64))),
    ],
)
def test_every_band_is_normalized_and_padded_with_zeros(scope, base, sample_type, size):
    environment.require(f'{scope}.models')
    structures = importlib.import_module(f'{scope}.structures')
    mean, std = (torch.rand(BANDS) * 100 + 1 for _ in range(2))
    cfg = dict(type='MultibandPreprocessor', base=base, mean=mean.tolist(), std=std.tolist())
    with DefaultScope.overwrite_default_scope(scope):
        preprocessor = MODELS.build({**cfg, **size})
    assert type(preprocessor).__name__ == base and preprocessor.state_dict() == {}
    image = torch.randint(0, 60000, (BANDS, 40, 50)).to(torch.uint16)
    sample = getattr(structures, sample_type)(gt_instances=InstanceData())
    output = preprocessor(dict(inputs=[image], data_samples=[sample]), training=True)['inputs']
    expected = (image.float() - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(output[0, :, :40, :50], expected)
    assert output.shape == (1, BANDS, 64, 64)
    assert not output[..., 40:, :].any() and not output[..., 50:].any()
