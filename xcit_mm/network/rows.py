"""The rows of an image that a process holds, and what layers need from the other rows.

XCiT reads other rows in four places: a convolution reads the rows above and below, BatchNorm and
the attention add up sums over all tokens, and the position encoding counts the rows. In these
places, they call a :class:`Rows`. Everything else acts on each token by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import all_gather_object
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ArgumentError
from ..processes import require_same
from .fast.unmodified import is_unmodified

MULTIPLE = 32  # pixels; no pooling window crosses a border at a multiple of them


class Rows:
    """All rows of the images are in this process: layers are called as they are."""

    are_shared = False
    have_gaps = False

    def check(self, images: Tensor, check_size: Callable[[Sequence[int]], None]) -> None:
        """Check the size of the images with ``check_size``."""
        check_size(images.shape)

    def position(self, encode: Callable[..., Tensor], H: int, W: int) -> Tensor:
        """Return the encoded positions (1 or B, C, H, W) of the H rows of this process."""
        return encode(H, W)

    def call(self, layer: nn.Module, *args: Any, **options: Any) -> Tensor:
        """Return the output of a layer for these rows, as if it were called with all rows."""
        return layer(*args, **options)

    def agreed(self, x: Tensor) -> Tensor:
        """Return a tensor of random numbers that all rows have in common."""
        return x

    def with_data(self, x: Tensor) -> Tensor:
        """Return the tokens (B, N, C) with zeros where there are no data."""
        return x

    def inner(self, x: Tensor) -> Tensor:
        """Return the tokens (B, N, C) without those that only the local interaction reads."""
        return x


ALONE = Rows()


class RowsWithGaps(Rows):
    """Rows in which some tokens have no data; convolutions read zeros there, as beyond the image.

    Args:
        valid: (H, W) bool, which tokens have data.
    """

    have_gaps = True

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid

    def call(self, layer: nn.Module, *args: Any, **options: Any) -> Tensor:
        if isinstance(layer, RowsModule):
            return layer(*args, rows=self, **options)
        if isinstance(layer, nn.Conv2d):
            (x,) = args
            return layer(x * self.valid)
        return layer(*args, **options)


class RowsModule(nn.Module):
    """A module whose ``forward`` takes ``rows``, because it or a layer in it reads other rows."""


class SharedRows(Rows):
    """The rows of the images are divided among the processes of a group, in their order.

    Sums and the rows of neighbors are exchanged in the forward pass, and their gradients in the
    backward pass.
    """

    are_shared = True

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)

    def check(self, images: Tensor, check_size: Callable[[Sequence[int]], None]) -> None:
        batch, channels, _, width = images.shape
        values = dict(batch=batch, channels=channels, width=width, dtype=images.dtype)
        require_same({f'the {name} of the image': v for name, v in values.items()}, self.group)
        shapes = all_gather_object(tuple(images.shape), self.group)
        for shape in shapes:  # all of them, so that no process waits for one that has ended
            check_size(shape)
        heights = [shape[2] for shape in shapes]
        if any(height % MULTIPLE for height in heights[:-1]):
            raise ArgumentError(
                f'blocks of {heights} rows cannot share an image: all but the last need a multiple '
                f'of {MULTIPLE} rows'
            )

    def position(self, encode: Callable[..., Tensor], H: int, W: int) -> Tensor:
        heights = all_gather_object(H, self.group)
        first = sum(heights[: self.rank])
        return encode(sum(heights), W, (slice(first, first + H), slice(None)))

    def call(self, layer: nn.Module, *args: Any, **options: Any) -> Tensor:
        if isinstance(layer, RowsModule):
            return layer(*args, rows=self, **options)
        if isinstance(layer, nn.Sequential):
            (x,) = args
            for child in layer:
                x = self.call(child, x)
            return x
        if isinstance(layer, nn.Conv2d) or (isinstance(layer, _BatchNorm) and layer.training):
            require_unmodified(layer)
            function = self._convolve if isinstance(layer, nn.Conv2d) else self._normalize
            return function(layer, *args)
        return layer(*args, **options)

    def agreed(self, x: Tensor) -> Tensor:
        dist.broadcast(x, dist.get_global_rank(self.group, 0), group=self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes."""
        return _Sum.apply(x, self.group)

    def swap(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Send rows to the processes above and below, and return their rows, or zeros."""
        above, below = (up.new_zeros(up.shape) for _ in range(2))
        transfers = []
        for rows, received, rank in ((up, above, self.rank - 1), (down, below, self.rank + 1)):
            if 0 <= rank < self.count:
                peer = dist.get_global_rank(self.group, rank)
                transfers.append(dist.P2POp(dist.isend, rows.contiguous(), peer, self.group))
                transfers.append(dist.P2POp(dist.irecv, received, peer, self.group))
        for transfer in dist.batch_isend_irecv(transfers) if transfers else ():
            transfer.wait()
        return above, below

    def _convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Convolve with a 3x3 kernel, padding 1 and stride 1 or 2.

        With stride 2, the row below is read by the next process alone: the number of rows is even.
        """
        x = _Halo.apply(x, self)
        return F.conv2d(x, conv.weight, conv.bias, conv.stride, (0, 1), groups=conv.groups)

    def _normalize(self, norm: _BatchNorm, x: Tensor) -> Tensor:
        """Normalize with the statistics of all processes, and update the running statistics."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = wide.sum((0, 2, 3))
        number = sums.new_tensor([x.numel() // x.shape[1]])
        sums, count = self.sum(torch.cat((sums, number))).split((len(sums), 1))
        count = count.detach()
        mean = sums / count
        centered = wide - mean[:, None, None]
        variance = self.sum(centered.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            norm.num_batches_tracked += 1
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
            unbiased = variance * (count / (count - 1))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
        factor = norm.weight * (variance + norm.eps).rsqrt()
        return (centered * factor[:, None, None] + norm.bias[:, None, None]).to(x.dtype)


def require_unmodified(*layers: nn.Module) -> None:
    """Refuse layers that are read as weights while processes share images, but must be called."""
    for layer in layers:
        if not is_unmodified(layer):
            raise ArgumentError(
                f'a {type(layer).__name__} with hooks, or of another class, cannot be shared by '
                'several processes: merge it into its weights first'
            )


class _Sum(Function):
    """Add up the tensors of all processes, and in the backward pass, their gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, dx: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(dx, ctx.group), None


class _Halo(Function):
    """Extend a map by the nearest rows of the processes above and below, or by zeros."""

    @staticmethod
    def forward(ctx, x: Tensor, rows: SharedRows) -> Tensor:
        ctx.rows = rows
        above, below = rows.swap(x[:, :, :1], x[:, :, -1:])
        return torch.cat((above, x, below), dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx, dx: Tensor) -> tuple[Tensor, None]:
        to_first, to_last = ctx.rows.swap(dx[:, :, :1], dx[:, :, -1:])
        dx = dx[:, :, 1:-1].clone()
        dx[:, :, :1] += to_first
        dx[:, :, -1:] += to_last
        return dx, None
