"""Feature maps whose windows are computed when they are read.

A neck or a head of mmdet or mmseg that is called with a :class:`LazyMap` returns lazy maps. Each
PyTorch function that it calls is recorded, with two :class:`Axis` that tell which rows and columns
of its input it reads for a window. Each window of the result equals the same window of the result
for the whole image. A function whose reach is not known here raises a UserError that names it.

A map with a :class:`.Tape` computes windows with graphs, which start at the leaves of the tape.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, partialmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...base.device import sent
from ...base.errors import UserError
from ...base.geometry import Window, shifted, tiles, whole
from ..tokens.shards import Shards
from ..tokens.tape import Tape
from .axes import Axis, for_both, pair, pooling, resized, sliding, transposed

TILE = 128, 128  # pixels of a map that is read once as a whole


class LazyMap:
    """A map (1, C, H, W) that computes its windows when they are read.

    Args:
        channels: C.
        axes: The rows and the columns.
        like: A tensor or a map with the dtype and the device of the windows.
        shards: The rows of the image that each process holds.
        compute: Computes a window. Its arguments are the window and, for each source, the window of
            the source that the axes reach.
        sources: The maps that this map is computed from. Default: the tokens of an image.
        fill: The values of the sources beyond their borders.
        tape: The leaves of the graphs of windows, if the map is trained.
    """

    def __init__(
        self,
        channels: int,
        axes: Sequence[Axis],
        like: 'Tensor | LazyMap',
        shards: Shards,
        compute: Callable[..., Tensor],
        sources: 'Sequence[LazyMap]' = (),
        fill: float = 0.0,
        tape: Tape | None = None,
    ) -> None:
        self.shape = torch.Size((1, channels, *(axis.size for axis in axes)))
        self.dtype, self.device, self.shards, self.tape = like.dtype, like.device, shards, tape
        self._axes, self._compute, self._sources, self._fill = axes, compute, sources, fill
        self._uses = 0  # by other maps
        for source in sources:
            source._uses += 1

    def read(
        self, window: Window, computed: dict[tuple, Tensor] | None = None, fill: float = 0.0
    ) -> Tensor:
        """Compute a window (1, C, h, w).

        Args:
            window: The window, which may extend beyond the borders of the map.
            computed: Windows that several maps are computed from. Calls with the same dict compute
                them only once.
            fill: The value beyond the borders.
        """
        inside = window.clipped(self.shape[2:])
        if 0 in inside.size:
            return self.new_zeros(1, self.shape[1], *window.size).fill_(fill)
        values = self._read(inside, computed)
        if inside == window:
            return values
        rows, columns = (
            (part.start - span.start, span.stop - part.stop)
            for part, span in zip(inside, window, strict=True)
        )
        return F.pad(values, (*columns, *rows), value=fill)

    def _read(self, window: Window, computed: dict[tuple, Tensor] | None) -> Tensor:
        key = id(self), *((span.start, span.stop) for span in window)
        if computed is not None and key in computed:
            return computed[key]
        reach = self.reach(window)
        inputs = (source.read(reach, computed, self._fill) for source in self._sources)
        values = self._compute(window, *inputs)
        if computed is not None and self._uses > 1:
            computed[key] = values
        return values

    def reach(self, window: Window) -> Window:
        """Return the window of the sources that a window is computed from."""
        return Window(*(axis.reach(span) for axis, span in zip(self._axes, window, strict=True)))

    def tokens_read(self, window: Window) -> Iterator[Window]:
        """Yield the windows of the tokens that a window is computed from, without computing it."""
        inside = window.clipped(self.shape[2:])
        if 0 in inside.size:
            return
        reach = self.reach(inside)
        for source in self._sources:
            yield from source.tokens_read(reach)
        if not self._sources and 0 not in reach.size:
            yield reach

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 4

    def new_zeros(self, *size: int) -> Tensor:
        return torch.zeros(*size, dtype=self.dtype, device=self.device)

    __add__ = __radd__ = partialmethod(torch.add)
    __mul__ = __rmul__ = partialmethod(torch.mul)
    __sub__, __rsub__ = partialmethod(torch.sub), partialmethod(torch.rsub)
    __truediv__, __neg__ = partialmethod(torch.div), partialmethod(torch.neg)

    def __getitem__(self, index: Any) -> 'LazyMap':
        raise UnknownReachError('indexing')

    def __getattr__(self, name: str) -> Any:
        if name in POINTWISE:
            return partial(_pointwise, getattr(Tensor, name), self)
        if name.startswith('__'):  # protocols of Python that a map does not have
            raise AttributeError(name)
        raise UnknownReachError(name)  # also an AttributeError, for code that tests if it exists

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> 'LazyMap':
        name = func.__name__
        if not args:
            raise UnknownReachError(f'{name} with names')
        if name in POINTWISE:
            return _pointwise(func, *args, **kwargs or {})
        if name not in FUNCTIONS:
            raise UnknownReachError(name)
        return FUNCTIONS[name](*args, **kwargs or {})


class UnknownReachError(UserError, AttributeError):
    """A model calls a function of a map, and the windows that it reads are not known."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'the model cannot be streamed: it calls {name} of a map, and how far that reaches is '
            'not known; predict with --sliced, and train on crops'
        )


def _refused_in_training(name: str, what: str, remedy: str) -> UserError:
    return UserError(
        f'the model cannot be streamed: it calls {name} in training, and {what}; {remedy}'
    )


def _derived(
    sources: Sequence[LazyMap],
    compute: Callable[..., Tensor],
    channels: int | None = None,
    axes: Sequence[Axis] | None = None,
    fill: float = 0.0,
    like: Tensor | None = None,
) -> LazyMap:
    """Return a map that is computed from others. Default: each pixel from the same pixel."""
    x = sources[0]
    like = x if like is None else like
    axes = axes or [Axis(n, lambda span: span) for n in x.shape[2:]]
    channels = channels or x.shape[1]
    return LazyMap(channels, axes, like, x.shards, compute, sources, fill, x.tape)


def _batch_norm(
    x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
) -> LazyMap:
    if training:
        raise _refused_in_training(
            'batch_norm',
            'its statistics change with the tiles',
            'keep the BatchNorm layers in evaluation mode',
        )
    parameters = running_mean, running_var, weight, bias, False, momentum, eps
    return _derived([x], lambda window, values: F.batch_norm(values, *parameters))


def _pointwise(func: Callable, *args: Any, **kwargs: Any) -> LazyMap:
    """Apply a function to each pixel of lazy maps of the same size and of one-pixel tensors."""
    maps = [arg for arg in args if isinstance(arg, LazyMap)]
    if any(x.shape[2:] != maps[0].shape[2:] for x in maps):
        raise UnknownReachError(f'{func.__name__} of two sizes')
    for arg in args:
        if isinstance(arg, Tensor) and arg.ndim and tuple(arg.shape[-2:]) != (1, 1):
            raise UnknownReachError(f'{func.__name__} with a tensor of shape {tuple(arg.shape)}')
    kwargs.pop('inplace', None)  # other maps may read the same window

    def compute(window: Window, *values: Tensor) -> Tensor:
        of_maps = iter(values)
        return func(*(next(of_maps) if isinstance(a, LazyMap) else a for a in args), **kwargs)

    no_pixels = compute(whole((0, 0)), *(x.new_zeros(1, x.shape[1], 0, 0) for x in maps))
    return _derived(maps, compute, no_pixels.shape[1], like=no_pixels)


def _cat(tensors: Sequence[LazyMap], dim: int = 0) -> LazyMap:
    if dim not in (1, -3) or any(t.shape[2:] != tensors[0].shape[2:] for t in tensors):
        raise UnknownReachError('cat along other dimensions than the channels')
    channels = sum(t.shape[1] for t in tensors)
    return _derived(tensors, lambda window, *values: torch.cat(values, 1), channels)


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> LazyMap:
    kernel = weight.shape[2:]
    if padding == 'same':
        if any(k % 2 == 0 for k in kernel):
            raise UnknownReachError("conv2d with padding='same' and an even kernel")
        padding = [d * (k - 1) // 2 for d, k in zip(pair(dilation), kernel, strict=True)]
    axes = for_both(sliding, x.shape[2:], kernel, stride, padding, dilation)

    def compute(window: Window, values: Tensor) -> Tensor:
        return F.conv2d(values, weight, bias, stride, 0, dilation, groups)

    return _derived([x], compute, weight.shape[0], axes)


def _max_pool2d(
    x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
) -> LazyMap:
    if ceil_mode or return_indices:
        raise UnknownReachError('max_pool2d with ceil_mode or indices')
    stride = stride or kernel_size
    axes = for_both(sliding, x.shape[2:], kernel_size, stride, padding, dilation)

    def compute(window: Window, values: Tensor) -> Tensor:
        return F.max_pool2d(values, kernel_size, stride, 0, dilation)

    return _derived([x], compute, axes=axes, fill=-math.inf)


def _conv_transpose2d(
    x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
) -> LazyMap:
    of_axes = weight.shape[2:], stride, padding, dilation
    axes = for_both(transposed, x.shape[2:], *of_axes, output_padding)

    def compute(window: Window, values: Tensor) -> Tensor:
        y = F.conv_transpose2d(values, weight, bias, stride, 0, 0, groups, dilation)
        steps = zip(axes, window, pair(stride), pair(padding), strict=True)
        crops = (shifted(span, p - axis.reach(span).start * step) for axis, span, step, p in steps)
        return y[(..., *crops)]

    return _derived([x], compute, weight.shape[1] * groups, axes)


def _dropout(x: LazyMap, p: float = 0.5, training: bool = True, inplace: bool = False) -> LazyMap:
    if training and p > 0:
        raise _refused_in_training(
            'dropout',
            'it draws a number for each pixel of a map',
            'set its ratio to 0, such as dropout_ratio=0, or use Dropout2d',
        )
    return x


def _dropout2d(x: LazyMap, p: float = 0.5, training: bool = True, inplace: bool = False) -> LazyMap:
    """Drop channels, the same ones in all tiles and processes."""
    if not training or p == 0:
        return x
    # PyTorch draws a number for each channel, whatever the size of the map.
    drawn = F.dropout2d(torch.ones(1, x.shape[1], 1, 1, dtype=x.dtype, device=x.device), p)
    return x * x.shards.broadcast(drawn.cpu()).to(x.device)


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
        raise UnknownReachError(f'interpolate with mode={mode!r}, antialias={antialias}')
    factors = pair(scale_factor)
    if size is None:
        size = [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    if recompute_scale_factor:
        factors = None, None
    dtype = torch.promote_types(x.dtype, torch.float32)
    resize = partial(resized, mode, bool(align_corners), dtype)
    sizes = map(int, pair(size))
    resizes = [resize(*of_axis) for of_axis in zip(x.shape[2:], sizes, factors, strict=True)]

    def compute(window: Window, values: Tensor) -> Tensor:
        of_axes = zip(resizes, window, strict=True)
        A, B = (sent(weights(span), x.device) for (_, weights), span in of_axes)
        with torch.autocast(x.device.type, enabled=False):  # it would round the weights
            return (A @ values.to(dtype) @ B.mT).to(x.dtype)

    return _derived([x], compute, axes=[axis for axis, _ in resizes])


def _adaptive_avg_pool2d(x: LazyMap, output_size: int | tuple[int, int]) -> LazyMap:
    """Pool a map to a few pixels, which requires a pass over the whole map.

    If the map is trained, its gradient requires another pass, after the last tile.
    """
    outs = pair(output_size)
    pools = [pooling(n, out) for n, out in zip(x.shape[2:], outs, strict=True)]
    area = pools[0].sum(1)[:, None] * pools[1].sum(1)
    own = Window(x.shards.share(x.shape[2]), slice(0, x.shape[3]))

    def parts() -> Iterator[tuple[Window, Tensor, Tensor]]:
        for window in tiles(own, TILE):
            yield window, *(pool[:, span] for pool, span in zip(pools, window, strict=True))

    def send_back(gradient: Tensor) -> None:
        gradient = x.shards.sum(gradient[0].cpu().double()) / area
        for window, A, B in parts():
            values = x.read(window, {})
            values.backward((A.mT @ gradient @ B)[None].to(values))
            x.tape.collect()

    sums = torch.zeros(x.shape[1], *outs, dtype=torch.float64)
    with torch.no_grad():
        for window, A, B in parts():
            sums += A @ x.read(window)[0].cpu().double() @ B.mT
    means = (x.shards.sum(sums) / area).to(x.dtype)[None].to(x.device)
    if x.tape is not None:
        means = x.tape.sums(means, send_back, (x, own))
    axes = [Axis(out, lambda span: slice(0, 0)) for out in outs]  # nothing is read any more

    def compute(window: Window) -> Tensor:
        return means[(..., *window)].clone()

    return LazyMap(x.shape[1], axes, x, x.shards, compute, tape=x.tape)


# The names of PyTorch's functions. Functions that act on each pixel by itself need no halo.
POINTWISE = {
    *('add', 'sub', 'rsub', 'mul', 'div', 'neg', 'exp', 'clamp', 'sigmoid', 'tanh'),
    *('float', 'relu', 'relu6', 'leaky_relu', 'gelu', 'silu', 'hardswish', 'hardsigmoid'),
    'softplus',
}
FUNCTIONS = {
    'adaptive_avg_pool2d': _adaptive_avg_pool2d,
    'batch_norm': _batch_norm,
    'cat': _cat,
    'conv2d': _conv2d,
    'conv_transpose2d': _conv_transpose2d,
    'dropout': _dropout,
    'dropout2d': _dropout2d,
    'interpolate': _interpolate,
    'max_pool2d': _max_pool2d,
    'type_as': lambda tensor, x: tensor.to(x.device, x.dtype),
}
