"""Backbones and preprocessors take images with any number of channels."""

import pytest
import torch
from helpers.small_xcit import small_xcit
from mmengine.registry import MODELS, DefaultScope

from xcit_mm import environment
from xcit_mm.errors import ArgumentError

BANDS = 13


@pytest.mark.parametrize('in_channels', [1, BANDS])
def test_a_backbone_takes_its_channels_and_trains_all_of_them(in_channels):
    model = small_xcit(in_channels=in_channels)
    maps = model(torch.randn(1, in_channels, 64, 96))
    sum(x.square().sum() for x in maps).backward()
    gradient = model.patch_embed.proj[0][0].weight.grad
    assert gradient.shape[1] == in_channels and gradient.abs().amax((0, 2, 3)).min() > 0
    with pytest.raises(ArgumentError, match=rf'are not .* H, W\), in_channels={in_channels}'):
        model(torch.randn(1, 3, 64, 96))


@pytest.mark.parametrize('in_channels', [0, -1, 3.0, None])
def test_a_number_of_channels_that_is_no_count_is_refused(in_channels):
    with pytest.raises(ArgumentError, match='is not a positive integer'):
        small_xcit(in_channels=in_channels)


@pytest.mark.parametrize(
    ('scope', 'base', 'size'),
    [
        ('mmdet', 'DetDataPreprocessor', dict(pad_size_divisor=32)),
        ('mmseg', 'SegDataPreProcessor', dict(size=(64, 64))),
    ],
)
def test_every_band_is_normalized_and_padded_with_zeros(scope, base, size):
    environment.require(f'{scope}.models')
    environment.require(f'{scope}.structures')
    from mmdet.structures import DetDataSample
    from mmseg.structures import SegDataSample

    mean, std = (torch.rand(BANDS) * 100 + 1 for _ in range(2))
    cfg = dict(type='MultibandPreprocessor', base=base, mean=mean.tolist(), std=std.tolist())
    with DefaultScope.overwrite_default_scope(scope):
        preprocessor = MODELS.build({**cfg, **size})
    assert type(preprocessor).__name__ == base and preprocessor.state_dict() == {}
    image = torch.randint(0, 60000, (BANDS, 40, 50)).to(torch.uint16)
    sample = DetDataSample() if scope == 'mmdet' else SegDataSample()
    if scope == 'mmdet':
        from mmengine.structures import InstanceData

        sample.gt_instances = InstanceData()
    output = preprocessor(dict(inputs=[image], data_samples=[sample]), training=True)['inputs']
    expected = (image.float() - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(output[0, :, :40, :50], expected)
    assert output.shape == (1, BANDS, 64, 64)
    assert not output[..., 40:, :].any() and not output[..., 50:].any()
