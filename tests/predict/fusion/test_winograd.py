"""Convolutions by Winograd's algorithm against PyTorch's, in float64."""

import pytest
import torch
from helpers import relative_error
from torch import nn
from torch.nn import functional as F

from xcit_mm.predict.fusion import winograd
from xcit_mm.predict.fusion.winograd import (
    WinogradConv2d,
    use_winograd,
    winograd_conv2d,
    winograd_weight,
)

SIZES = [(2, 5, 4, 1, 1), (1, 3, 8, 4, 9), (3, 16, 8, 37, 30), (1, 4, 4, 300, 3), (200, 8, 3, 7, 7)]


@pytest.mark.parametrize('B, C, D, H, W', SIZES)
@pytest.mark.parametrize('has_bias', [True, False])
@pytest.mark.parametrize('memory_format', [torch.channels_last, torch.contiguous_format])
def test_float64(B, C, D, H, W, has_bias, memory_format, monkeypatch):
    monkeypatch.setattr(winograd, 'TILES_PER_THREAD', 1)
    x = torch.randn(B, C, H, W).double().contiguous(memory_format=memory_format)
    weight = torch.randn(D, C, 3, 3).double()
    bias = torch.randn(D).double() if has_bias else None
    values = winograd_conv2d(x, winograd_weight(weight), bias)
    expected = F.conv2d(x, weight, bias, padding=1)
    assert values.is_contiguous(memory_format=torch.channels_last)
    assert values.shape == expected.shape
    assert relative_error(values, expected) <= 1e-13


@pytest.mark.parametrize('size', [(64, 80), (13, 21)])
def test_float32(size):
    x = torch.randn(1, 256, *size)
    conv = nn.Conv2d(256, 256, 3, padding=1).requires_grad_(False)
    expected = F.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)
    values = winograd_conv2d(x, winograd_weight(conv.weight), conv.bias)
    assert relative_error(values, expected) <= 5e-6


@pytest.mark.parametrize(
    'conv, is_used',
    [
        (nn.Conv2d(128, 128, 3, padding=1), True),
        (nn.Conv2d(128, 128, 3, padding=1).double(), False),
        (nn.Conv2d(64, 128, 3, padding=1), False),
        (nn.Conv2d(128, 128, 3), False),
        (nn.Conv2d(128, 128, 3, stride=2, padding=1), False),
        (nn.Conv2d(128, 128, 3, padding=2, dilation=2), False),
        (nn.Conv2d(128, 128, 3, padding=1, groups=2), False),
        (nn.Conv2d(128, 128, 3, padding=1, padding_mode='reflect'), False),
    ],
)
def test_which_convolutions_use_it(conv, is_used):
    model = nn.Sequential(conv)
    names = model.state_dict().keys()
    x = torch.randn(1, conv.in_channels, 16, 18, dtype=conv.weight.dtype)
    expected = model(x)
    use_winograd(model)
    assert isinstance(model[0], WinogradConv2d) == is_used
    assert model.state_dict().keys() == names
    with torch.no_grad():
        values = model(x)
        assert torch.equal(values, expected) != is_used
        assert relative_error(values, expected) <= 1e-5
        # A map of few tiles
        assert torch.equal(model(x[..., :8, :8]), nn.Conv2d.forward(model[0], x[..., :8, :8]))


def test_what_does_not_use_it():
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1))
    x = torch.randn(1, 128, 16, 16, requires_grad=True)
    expected = model(x)
    use_winograd(model)
    assert torch.equal(model(x), expected)  # with a graph for gradients
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    with torch.no_grad():
        traced = torch.jit.trace(model, x, check_trace=False)
    assert torch.equal(traced(x), expected)
