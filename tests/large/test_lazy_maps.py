"""Windows of lazy maps against the same windows of PyTorch's results."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.large.maps import lazy as lazy_maps
from xcit_mm.large.maps.axes import Axis
from xcit_mm.large.maps.lazy import LazyMap
from xcit_mm.large.tokens.shards import Shards
from xcit_mm.large.tokens.tape import Tape

CHANNELS = 4


def lazy(x: Tensor, reads: list[Window] | None = None) -> LazyMap:
    """Return a map with the values of a tensor, which may record the windows that are read."""

    def compute(window: Window) -> Tensor:
        if reads is not None:
            reads.append(window)
        return x[(..., *window)].clone()

    axes = [Axis(n, lambda span: span) for n in x.shape[2:]]
    return LazyMap(x.shape[1], axes, x, Shards(x.shape[2]), compute)


def trained(x: Tensor, tape: Tape) -> tuple[LazyMap, Tensor]:
    """Return a map with the values of a tensor, and the gradient that windows are added to."""
    gradient = torch.zeros_like(x)

    def compute(window: Window) -> Tensor:
        part = (..., *window)
        return tape.window(x[part], lambda values: gradient[part].add_(values))

    axes = [Axis(n, lambda span: span) for n in x.shape[2:]]
    return LazyMap(x.shape[1], axes, x, Shards(x.shape[2]), compute, tape=tape), gradient


def windows(size: tuple[int, int]) -> list[Window]:
    """Windows at the corners, in the middle and of single pixels, and the whole."""
    H, W = size
    spans = [[slice(0, max(1, n // 3)), slice(n // 3, n // 2 + 1), slice(n - 1, n)] for n in (H, W)]
    return [whole(size), *(Window(rows, columns) for rows in spans[0] for columns in spans[1])]


MODULES = {
    'conv': nn.Conv2d(CHANNELS, 6, 3, padding=1),
    'conv stride': nn.Conv2d(CHANNELS, 6, 3, stride=2, padding=1, bias=False),
    'conv dilation, groups': nn.Conv2d(CHANNELS, 8, (3, 5), padding='same', dilation=2, groups=2),
    'conv even kernel': nn.Conv2d(CHANNELS, 6, 4, stride=3, padding=2),
    'conv padded beyond its kernel': nn.Conv2d(CHANNELS, 6, 1, padding=2),
    'transposed': nn.ConvTranspose2d(CHANNELS, 6, 2, stride=2),
    'transposed overlap': nn.ConvTranspose2d(CHANNELS, 6, 4, stride=2, padding=1),
    'transposed output padding': nn.ConvTranspose2d(
        CHANNELS, 6, 3, stride=2, padding=1, output_padding=1, dilation=2, groups=2
    ),
    'transposed, small kernel': nn.ConvTranspose2d(CHANNELS, 6, (1, 2), stride=3),
    'max pool': nn.MaxPool2d(3, stride=2, padding=1),
    'max pool of one pixel': nn.MaxPool2d(1, stride=2),
    'batch norm, relu': nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)),
    'activations': nn.Sequential(nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Dropout2d()),
    'pyramid pooling': nn.Sequential(nn.AdaptiveAvgPool2d((2, 5)), nn.Conv2d(CHANNELS, 3, 1)),
    'upsample': nn.Upsample(scale_factor=2),
}
FUNCTIONS = {
    'nearest to any size': lambda x: F.interpolate(x, (29, 71)),
    'nearest, smaller': lambda x: F.interpolate(x, (7, 13)),
    'nearest factor': lambda x: F.interpolate(x, scale_factor=1.7),
    'bilinear': lambda x: F.interpolate(x, (41, 59), mode='bilinear'),
    'bilinear, smaller': lambda x: F.interpolate(x, (11, 9), mode='bilinear'),
    'bilinear factor': lambda x: F.interpolate(x, scale_factor=2.5, mode='bilinear'),
    'bilinear corners': lambda x: F.interpolate(x, (41, 59), mode='bilinear', align_corners=True),
    'differences': lambda x: torch.cat([1 - x, -x - 2, x / 3], dim=1),
    'sum of branches': lambda x: torch.cat([x + x.exp() * 2, 1 + F.relu(x, inplace=True)], dim=1),
    'tensors of a pixel': lambda x: x * torch.arange(1.0, 5).view(1, 4, 1, 1),
}


@pytest.mark.parametrize('name', [*MODULES, *FUNCTIONS])
def test_windows_of_results(name):
    function: Callable = FUNCTIONS.get(name) or MODULES[name].eval()
    x = torch.randn(1, CHANNELS, 19, 26)
    with torch.no_grad():
        expected = function(x.clone())
        result = function(lazy(x, reads := []))
        assert result.shape == expected.shape
        for window in windows(tuple(expected.shape[2:])):
            reads.clear()
            values = result.read(window)
            torch.testing.assert_close(values, expected[(..., *window)], rtol=1e-5, atol=1e-5)
            assert list(result.tokens_read(window)) == reads


@pytest.mark.parametrize('name', [*MODULES, *FUNCTIONS])
def test_gradients_of_windows(name, monkeypatch):
    monkeypatch.setattr(lazy_maps, 'TILE', (5, 4))
    function: Callable = FUNCTIONS.get(name) or copy.deepcopy(MODULES[name]).double().eval()
    parameters = list(function.parameters()) if name in MODULES else []
    x = torch.randn(1, CHANNELS, 19, 26, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    expected = function(leaf.clone())
    cotangent = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [leaf, *parameters], cotangent)

    source, gradient = trained(x, tape := Tape())
    result = function(source)
    for window in tiles(whole(tuple(expected.shape[2:])), (7, 9)):
        result.read(window, {}).backward(cotangent[(..., *window)])
        tape.collect()
    tape.finish()
    for value, reference in zip([gradient, *(p.grad for p in parameters)], wanted, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-11, atol=1e-11)


def test_channels_are_dropped_as_for_the_whole_map():
    x = torch.randn(1, 64, 9, 7)
    dropout = nn.Dropout2d(0.4)
    torch.manual_seed(1)
    expected = dropout(x)
    torch.manual_seed(1)
    result = dropout(lazy(x))
    for window in windows((9, 7)):  # the same channels in each
        assert torch.equal(result.read(window), expected[(..., *window)])
    assert (expected == 0).any()
    assert dropout.eval()(source := lazy(x)) is source


def test_pooling_adds_up_tiles(monkeypatch):
    monkeypatch.setattr(lazy_maps, 'TILE', (5, 4))
    x = torch.randn(1, CHANNELS, 19, 26)
    pooled = F.adaptive_avg_pool2d(lazy(x), 3)
    torch.testing.assert_close(pooled.read(whole((3, 3))), F.adaptive_avg_pool2d(x, 3))


def test_a_window_that_several_maps_need_is_read_once():
    x = lazy(torch.ones(1, 1, 8, 8), reads := [])
    a, b = F.relu(x, inplace=True), x * 2
    known = {}
    a.read(whole((8, 8)), known)
    assert b.read(whole((8, 8)), known).eq(2).all()
    assert len(reads) == 1
    a.read(whole((8, 8)))
    assert len(reads) == 2


@pytest.mark.parametrize(
    ('function', 'name'),
    [
        (nn.GroupNorm(2, CHANNELS), 'group_norm'),
        (nn.BatchNorm2d(CHANNELS), 'batch_norm in training.*keep the BatchNorm layers in eval'),
        (nn.Dropout(0.1), 'dropout in training.*set its ratio to 0'),
        (nn.Conv2d(CHANNELS, 1, 2, padding='same'), 'conv2d with padding'),
        (lambda x: x + torch.arange(26), 'add with a tensor'),
        (lambda x: x.flatten(2), 'flatten'),
        (lambda x: torch.cat([x, x], dim=2), 'cat along'),
        (lambda x: x + torch.ones(1, CHANNELS, 19, 26), 'add with a tensor'),
        (lambda x: F.interpolate(x, (5, 5), mode='bicubic'), "interpolate with mode='bicubic'"),
        (nn.MaxPool2d(2, ceil_mode=True), 'max_pool2d with ceil_mode'),
        (lambda x: x + F.max_pool2d(x, 2), 'add of two sizes'),
    ],
)
def test_a_function_whose_reach_is_not_known_is_named(function, name):
    with pytest.raises(UserError, match=f'cannot be streamed: it calls {name}'):
        function(lazy(torch.randn(1, CHANNELS, 19, 26)))
