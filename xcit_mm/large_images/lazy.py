"""Compute feature maps window by window, when a window is read.

A neck or a head of mmdet or mmseg that is called with a :class:`LazyMap` returns lazy maps. Each
PyTorch function that it calls is recorded as a function of windows, with the halo that it needs.
Each window of the result equals the same window of the result for the whole image. A function
whose reach is not known here raises a UserError that names the function.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from .geometry import Window, length, shifted, tiles
from .shards import Bands

Size = tuple[int, int]
# Windows of the maps that several other maps read, by map and window.
_known: ContextVar[dict | None] = ContextVar('known', default=None)
TILE = 128, 128  # pixels of a map that is read once as a whole


class LazyMap:
    """A map (1, C, H, W) that computes its windows when they are read.

    Attributes:
        shape: (1, C, H, W).
        dtype, device: The dtype and the device of the windows.
        bands: The bands of rows that divide the image among the processes.
    """

    def __init__(
        self,
        channels: int,
        size: Size,
        like: 'Tensor | LazyMap',
        bands: Bands,
        read: Callable[[Window], Tensor],
    ) -> None:
        self.shape = torch.Size((1, channels, *size))
        self.dtype, self.device = like.dtype, like.device
        self.bands = bands
        self.uses = 0  # number of uses by other maps
        self._read = read

    def read(self, window: Window) -> Tensor:
        """Compute a window (1, C, h, w)."""
        if 0 in window.size:
            return self.new_zeros(1, self.shape[1], *window.size)
        known = _known.get()
        if known is None or self.uses < 2:
            return self._read(window)
        key = id(self), *((span.start, span.stop) for span in window)
        if key not in known:
            known[key] = self._read(window)
        return known[key]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 4

    def new_zeros(self, *size: int) -> Tensor:
        return torch.zeros(*size, dtype=self.dtype, device=self.device)

    def __add__(self, other: 'Tensor | LazyMap | float') -> 'LazyMap':
        return torch.add(self, other)

    def __mul__(self, other: 'Tensor | LazyMap | float') -> 'LazyMap':
        return torch.mul(self, other)

    def __sub__(self, other: 'Tensor | LazyMap | float') -> 'LazyMap':
        return torch.sub(self, other)

    def __rsub__(self, other: 'Tensor | float') -> 'LazyMap':
        return torch.rsub(self, other)

    def __truediv__(self, other: 'Tensor | LazyMap | float') -> 'LazyMap':
        return torch.div(self, other)

    def __neg__(self) -> 'LazyMap':
        return torch.neg(self)

    def __getitem__(self, index: Any) -> 'LazyMap':
        raise _unknown('indexing')

    __radd__, __rmul__ = __add__, __mul__

    def __getattr__(self, name: str) -> Any:
        if name == 'float':
            return partial(_float, self)
        if name in POINTWISE:
            return partial(_pointwise, getattr(Tensor, name), self)
        if name.startswith('__'):  # protocols of Python that a map does not have
            raise AttributeError(name)
        raise _unknown(name)  # also an AttributeError, for code that tests whether it exists

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> 'LazyMap':
        name = func.__name__
        if not args:
            raise _unknown(f'{name} with names')
        for arg in args[0] if name == 'cat' else args:
            if isinstance(arg, LazyMap):
                arg.uses += 1
        if name in POINTWISE:
            return _pointwise(func, *args, **kwargs or {})
        if name not in FUNCTIONS:
            raise _unknown(name)
        return FUNCTIONS[name](*args, **kwargs or {})


@contextmanager
def reading_together() -> Iterator[None]:
    """Compute each window that several maps need only once, within a ``with`` block."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


class UnknownReachError(UserError, AttributeError):
    """A model calls a function of a map, and the windows that it reads are not known."""


def _unknown(name: str) -> UnknownReachError:
    return UnknownReachError(
        f'the model cannot be streamed: it calls {name} of a map, and how far that reaches is not '
        'known; use --sliced'
    )


def _derived(x: LazyMap, channels: int, size: Size, read: Callable[[Window], Tensor]) -> LazyMap:
    return LazyMap(channels, size, x, x.bands, read)


def _float(x: LazyMap) -> LazyMap:
    like = torch.empty(0, dtype=torch.float32, device=x.device)
    return LazyMap(x.shape[1], x.shape[2:], like, x.bands, lambda window: x.read(window).float())


def _batch_norm(
    x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
) -> LazyMap:
    if training:
        raise _unknown('batch_norm in training')
    parameters = running_mean, running_var, weight, bias, False, momentum, eps
    return _derived(
        x, x.shape[1], x.shape[2:], lambda window: F.batch_norm(x.read(window), *parameters)
    )


def _pointwise(func: Callable, *args: Any, **kwargs: Any) -> LazyMap:
    """Apply a function to each pixel of lazy maps of the same size and of one-pixel tensors."""
    maps = [arg for arg in args if isinstance(arg, LazyMap)]
    x = maps[0]
    kwargs.pop('inplace', None)  # other maps may read the same window
    for arg in args:
        size = arg.shape[2:] if isinstance(arg, LazyMap) else (1, 1)
        if isinstance(arg, Tensor) and arg.ndim and tuple(arg.shape[-2:]) != (1, 1):
            raise _unknown(f'{func.__name__} with a tensor of shape {tuple(arg.shape)}')
        if isinstance(arg, LazyMap) and size != x.shape[2:]:
            raise _unknown(f'{func.__name__} of two sizes')

    def read(window: Window) -> Tensor:
        values = [a.read(window) if isinstance(a, LazyMap) else a for a in args]
        return func(*values, **kwargs)

    return _derived(x, max(m.shape[1] for m in maps), x.shape[2:], read)


def _cat(tensors: Sequence[LazyMap], dim: int = 0) -> LazyMap:
    x = tensors[0]
    if dim not in (1, -3) or any(t.shape[2:] != x.shape[2:] for t in tensors):
        raise _unknown('cat along other dimensions than the channels')
    channels = sum(t.shape[1] for t in tensors)
    return _derived(
        x, channels, x.shape[2:], lambda window: torch.cat([t.read(window) for t in tensors], 1)
    )


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> LazyMap:
    if padding == 'same':
        if any(k % 2 == 0 for k in weight.shape[2:]):
            raise _unknown("conv2d with padding='same' and an even kernel")
        padding = [d * (k - 1) // 2 for d, k in zip(_pair(dilation), weight.shape[2:], strict=True)]
    geometry = weight.shape[2:], stride, padding, dilation

    def compute(x: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride, 0, dilation, groups)

    return _sliding(x, weight.shape[0], geometry, 0.0, compute)


def _max_pool2d(
    x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
) -> LazyMap:
    if ceil_mode or return_indices:
        raise _unknown('max_pool2d with ceil_mode or indices')
    stride = stride or kernel_size
    geometry = kernel_size, stride, padding, dilation

    def compute(x: Tensor) -> Tensor:
        return F.max_pool2d(x, kernel_size, stride, 0, dilation)

    return _sliding(x, x.shape[1], geometry, -math.inf, compute)


def _sliding(
    x: LazyMap, channels: int, geometry: tuple, fill: float, compute: Callable[[Tensor], Tensor]
) -> LazyMap:
    """Slide a kernel over a map that is padded with ``fill`` beyond its borders."""
    axes = list(zip(*map(_pair, geometry), strict=True))  # (kernel, stride, padding, dilation)
    size = tuple(
        (n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for n, (kernel, stride, padding, dilation) in zip(x.shape[2:], axes, strict=True)
    )

    def read(window: Window) -> Tensor:
        spans, pads = [], []
        for span, n, (kernel, stride, padding, dilation) in zip(
            window, x.shape[2:], axes, strict=True
        ):
            start = span.start * stride - padding
            stop = (span.stop - 1) * stride - padding + dilation * (kernel - 1) + 1
            spans.append(slice(max(0, start), min(n, stop)))
            pads.append((max(0, -start), max(0, stop - n)))
        values = x.read(Window(*spans))
        if any(map(any, pads)):
            values = F.pad(values, (*pads[1], *pads[0]), value=fill)
        return compute(values)

    return _derived(x, channels, size, read)


def _conv_transpose2d(
    x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
) -> LazyMap:
    geometry = weight.shape[2:], stride, padding, dilation, output_padding
    axes = list(zip(*map(_pair, geometry), strict=True))
    size = tuple(
        (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
        for n, (kernel, stride, padding, dilation, extra) in zip(x.shape[2:], axes, strict=True)
    )

    def read(window: Window) -> Tensor:
        spans, crops, missing = [], [], []
        for span, n, (kernel, stride, padding, dilation, _) in zip(
            window, x.shape[2:], axes, strict=True
        ):
            # Output i gets input j if i = j * stride - padding + dilation * k for a k < kernel.
            first = -(-(span.start + padding - dilation * (kernel - 1)) // stride)
            start, stop = max(0, first), min(n, (span.stop - 1 + padding) // stride + 1)
            spans.append(slice(start, stop))
            crop = shifted(span, padding - start * stride)
            crops.append(crop)
            missing.append(crop.stop - ((stop - start - 1) * stride + dilation * (kernel - 1) + 1))
        y = F.conv_transpose2d(
            x.read(Window(*spans)),
            weight,
            bias,
            stride,
            0,
            [max(0, m) for m in missing],
            groups,
            dilation,
        )
        return y[(..., *crops)]

    return _derived(x, weight.shape[1] * groups, size, read)


def _interpolate(
    x,
    size=None,
    scale_factor=None,
    mode='nearest',
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
) -> LazyMap:
    if mode not in ('nearest', 'bilinear') or antialias:
        raise _unknown(f'interpolate with mode={mode!r}, antialias={antialias}')
    ins = tuple(x.shape[2:])
    factors = (None, None) if scale_factor is None else _pair(scale_factor)
    if size is None:
        size = tuple(math.floor(n * f) for n, f in zip(ins, factors, strict=True))
    outs = tuple(map(int, _pair(size)))
    if recompute_scale_factor:
        factors = None, None
    axes = [
        _sources(mode, bool(align_corners), *axis, x)
        for axis in zip(ins, outs, factors, strict=True)
    ]

    def read(window: Window) -> Tensor:
        (rows, A), (columns, B) = (
            _weights(*(t[span] for t in axis)) for axis, span in zip(axes, window, strict=True)
        )
        values = x.read(Window(rows, columns)).to(A.dtype)
        return (A.to(x.device) @ values @ B.mT.to(x.device)).to(x.dtype)

    return _derived(x, x.shape[1], outs, read)


def _sources(
    mode: str, align_corners: bool, n: int, size: int, factor: float | None, like: LazyMap
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two source pixels for each of ``size`` pixels, and the weight of the second one."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if mode == 'nearest':  # take the indices from PyTorch, which rounds in its own way
        how = dict(size=size) if factor is None else dict(scale_factor=factor)
        lower = F.interpolate(torch.arange(n, dtype=dtype).view(1, 1, n), **how).long().flatten()
        return lower.numpy(), lower.numpy(), torch.zeros(size, dtype=dtype).numpy()
    place = torch.arange(size, dtype=dtype)
    if align_corners:
        place = place * ((n - 1) / (size - 1) if size > 1 else 0.0)
    else:
        place = ((place + 0.5) * (n / size if factor is None else 1 / factor) - 0.5).clamp_min(0)
    lower = place.long().clamp_max(n - 1)
    weight = (place - lower).clamp(0, 1)
    return lower.numpy(), (lower + 1).clamp_max(n - 1).numpy(), weight.numpy()


def _weights(lower: np.ndarray, upper: np.ndarray, weight: np.ndarray) -> tuple[slice, Tensor]:
    """Return the pixels that a part of a resized axis needs, and a matrix of their weights.

    A product with this matrix takes half the time of PyTorch's interpolation on a CPU.
    """
    pixels, rows = slice(int(lower[0]), int(upper[-1]) + 1), np.arange(len(weight))
    matrix = np.zeros((len(weight), length(pixels)), weight.dtype)
    matrix[rows, lower - pixels.start] = 1 - weight
    matrix[rows, upper - pixels.start] += weight
    return pixels, torch.from_numpy(matrix)


def _adaptive_avg_pool2d(x: LazyMap, output_size: int | Size) -> LazyMap:
    """Pool a map to a few pixels, which requires a pass over the whole map."""
    outs = _pair(output_size)
    pools = [_pooling(n, out) for n, out in zip(x.shape[2:], outs, strict=True)]
    sums = torch.zeros(x.shape[1], *outs, dtype=torch.float64)
    own = Window(x.bands.share(x.shape[2]), slice(0, x.shape[3]))
    for window in tiles(own, TILE):
        A, B = (pool[:, span] for pool, span in zip(pools, window, strict=True))
        sums += A @ x.read(window)[0].double().cpu() @ B.mT
    area = pools[0].sum(1)[:, None] * pools[1].sum(1)
    means = (x.bands.sum(sums) / area).to(x.dtype)[None].to(x.device)
    return _derived(x, x.shape[1], outs, lambda window: means[(..., *window)].clone())


def _pooling(n: int, out: int) -> Tensor:
    """Return a matrix (out, n) that is 1 where a pixel belongs to an output pixel, else 0."""
    pixel, bin = torch.arange(n), torch.arange(out)[:, None]
    starts, stops = bin * n // out, -(-(bin + 1) * n // out)
    return ((pixel >= starts) & (pixel < stops)).double()


def _pair(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list, torch.Size)) else (value, value)


# The names of PyTorch's functions. Functions that act on each pixel by itself need no halo.
POINTWISE = {
    *('add', 'sub', 'rsub', 'mul', 'div', 'neg', 'exp', 'clamp', 'sigmoid', 'tanh'),
    *('relu', 'relu6', 'leaky_relu', 'gelu', 'silu', 'hardswish', 'hardsigmoid'),
    *('dropout', 'dropout2d'),
}
FUNCTIONS = {
    'adaptive_avg_pool2d': _adaptive_avg_pool2d,
    'batch_norm': _batch_norm,
    'cat': _cat,
    'conv2d': _conv2d,
    'conv_transpose2d': _conv_transpose2d,
    'interpolate': _interpolate,
    'max_pool2d': _max_pool2d,
    'type_as': lambda tensor, x: tensor.to(x.device, x.dtype),
}
