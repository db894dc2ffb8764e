"""The rows or columns that functions of maps read: kernels that slide, resizing and pooling."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...base.geometry import Span, length
from .resized_labels import sources


class Axis(NamedTuple):
    """The rows or the columns of a map.

    Attributes:
        size: The number of rows or columns.
        reach: Returns the span of a source that a span of the map is computed from. It may extend
            beyond the borders of the source.
    """

    size: int
    reach: Callable[[Span], Span]


def for_both(axis: Callable[..., Axis], *arguments: Any) -> list[Axis]:
    """Return the axes of rows and columns; an argument is a number for both or a pair."""
    return [axis(*of_axis) for of_axis in zip(*map(pair, arguments), strict=True)]


def sliding(n: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:
    """Return the axis of a kernel that slides over n pixels, as in a convolution or a pooling."""
    extent = dilation * (kernel - 1) + 1

    def reach(span: Span) -> Span:
        return slice(span.start * stride - padding, (span.stop - 1) * stride - padding + extent)

    return Axis((n + 2 * padding - extent) // stride + 1, reach)


def transposed(
    n: int, kernel: int, stride: int, padding: int, dilation: int, output_padding: int
) -> Axis:
    """Return the axis of a transposed convolution, which adds up a kernel for each of n pixels."""
    extent = dilation * (kernel - 1) + 1

    def reach(span: Span) -> Span:
        # The kernel of pixel j begins at j * stride - padding. The first kernel begins at the start
        # of the span or before it, and the last one at its last pixel or after it.
        first = (span.start + padding - extent + 1) // stride
        last = -(-(span.stop - 1 + padding) // stride)
        return slice(first, last + 1)

    return Axis((n - 1) * stride - 2 * padding + extent + output_padding, reach)


def resized(
    mode: str, align_corners: bool, dtype: torch.dtype, n: int, size: int, factor: float | None
) -> tuple[Axis, Callable[[Span], Tensor]]:
    """Return an axis that is resized from n pixels, and a function of the weights of a span.

    The weights are a matrix whose product with the reach of the span is the span, in half the time
    of PyTorch's interpolation on a CPU.
    """
    if mode == 'nearest':  # take the indices from PyTorch, which rounds in its own way
        how = dict(size=size) if factor is None else dict(scale_factor=factor)
        place = F.interpolate(torch.arange(n, dtype=dtype).view(1, 1, n), **how).flatten()
    else:
        place = sources(n, size, align_corners, dtype, factor)
    lower = place.long().clamp_max(n - 1)
    upper = lower if mode == 'nearest' else (lower + 1).clamp_max(n - 1)
    fraction = (place - lower).clamp(0, 1).numpy()  # of the upper pixel
    lower, upper = lower.numpy(), upper.numpy()

    def reach(span: Span) -> Span:
        return slice(int(lower[span.start]), int(upper[span.stop - 1]) + 1)

    def weights(span: Span) -> Tensor:
        pixels, rows = reach(span), np.arange(length(span))
        matrix = np.zeros((length(span), length(pixels)), fraction.dtype)
        matrix[rows, lower[span] - pixels.start] = 1 - fraction[span]
        matrix[rows, upper[span] - pixels.start] += fraction[span]
        return torch.from_numpy(matrix)

    return Axis(size, reach), weights


def pooling(n: int, out: int) -> Tensor:
    """Return a matrix (out, n) that is 1 where a pixel belongs to an output pixel, else 0."""
    pixel, bin = torch.arange(n), torch.arange(out)[:, None]
    starts, stops = bin * n // out, -(-(bin + 1) * n // out)
    return ((pixel >= starts) & (pixel < stops)).double()


def pair(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list, torch.Size)) else (value, value)
