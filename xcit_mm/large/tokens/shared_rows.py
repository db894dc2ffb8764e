"""Rows of images that several processes share, each with a block of rows.

Sums and the rows of neighbors are exchanged in the forward pass, and their gradients in the
backward pass.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from mmengine.dist import all_gather_object
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ...base.errors import ArgumentError
from ...base.processes import require_same
from ...network.rows import MULTIPLE, Rows, require_unmodified


class SharedRows(Rows):
    """The rows of the images are divided among the processes of a group, in their order."""

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

    def convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Convolve with a 3x3 kernel, padding 1 and stride 1 or 2.

        With stride 2, the row below is read by the next process alone: the number of rows is even.
        """
        require_unmodified(conv)
        x = _Halo.apply(x, self)
        return F.conv2d(x, conv.weight, conv.bias, conv.stride, (0, 1), groups=conv.groups)

    def normalize(self, norm: _BatchNorm, x: Tensor) -> Tensor:
        """Normalize with the statistics of all processes, and update the running statistics."""
        if not norm.training:
            return norm(x)
        require_unmodified(norm)
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
