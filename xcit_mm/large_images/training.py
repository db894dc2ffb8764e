"""Train on images that several processes share, each with a band of rows.

The attention of a layer adds up the moments of all processes, a convolution borrows rows from the
neighbouring processes, and a BatchNorm uses the statistics of all processes. Gradients flow back
along the same paths. The outputs are therefore those of a single process, and the gradients of all
processes add up to the gradients of a single process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..errors import ArgumentError
from ..models import XCiT
from ..models.convolutions import flat_layers
from ..models.layers import LPI, XCABlock, map_to_tokens, tokens_to_map
from ..models.unmodified import has_plain_layers
from ..ops.recompute import recompute
from ..ops.tracing import computed_dtype, without_autocast
from ..ops.xca import mixing, with_moments
from ..processes import require_same
from .moments import from_sums, to_sums
from .streamable import require_known_reach

MULTIPLE = 32  # pixels; so that no pooling window crosses a border of a band


@contextmanager
def shared_images(backbone: XCiT, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Let the processes of a group train on the same images, within a ``with`` block.

    Within the block, ``backbone`` takes a band of rows of each image (B, channels, h, W), and
    returns the same rows of its maps. The bands follow each other in the order of the ranks, and
    all but the last have a multiple of 32 rows. The loss of the image is the sum of the losses of
    the processes, and the gradient of a parameter is the sum of their gradients. Because
    DistributedDataParallel takes the mean instead, multiply the losses by the number of processes
    if you use it.

    Args:
        backbone: The XCiT, with the same weights in all processes.
        group: The group of processes that share an image. Default: all processes.

    Raises:
        ArgumentError: If the processes are not connected, if a layer has hooks or was replaced,
            or, in the forward pass, if the number of rows of a band is not possible.
        ProcessesError: If the layers of the backbones differ, or, in the forward pass, the batch,
            the channels, the width or the dtype of the bands. The weights are not compared.
    """
    if not dist.is_initialized():
        raise ArgumentError('the processes are not connected: call init_process_group first')
    require_known_reach(backbone)
    require_same({'the backbone': f'{backbone!r} in training mode: {backbone.training}'}, group)
    backbone.image_group = group or dist.group.WORLD
    try:
        yield
    finally:
        backbone.image_group = None


def forward_band(backbone: XCiT, image: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Compute the rows of the maps that belong to a band of images; see :func:`shared_images`."""
    b, processes = backbone, _Processes(group)
    batch, channels, _, width = image.shape
    values = dict(batch=batch, channels=channels, width=width, dtype=image.dtype)
    require_same({f'the {name} of the image': value for name, value in values.items()}, group)
    shapes = processes.all_gather(tuple(image.shape))
    for shape in shapes:  # of all bands, so that no process waits for one that has ended
        b.check_size(shape)
    heights = [shape[2] for shape in shapes]
    if any(height % MULTIPLE for height in heights[:-1]):
        raise ArgumentError(
            f'bands of {heights} rows cannot share an image: all but the last need a multiple of '
            f'{MULTIPLE} rows'
        )
    rows = [-(-height // b.patch_size) for height in heights]
    first = sum(rows[: processes.rank])
    x = _stack(b.patch_embed.proj, image.contiguous(memory_format=torch.channels_last), processes)
    H, W = x.shape[2:]
    position = b.pos_embeder(sum(rows), W, slice(first, first + H))
    x = map_to_tokens(x + position)
    maps, returned = [], [index for index, *_ in b.levels]
    for i, block in enumerate(b.blocks[: b.out_indices[-1] + 1]):
        arguments = block, x, H, W, processes
        if b.with_cp:
            x = recompute(_block, *arguments, within=block, random=True)
        else:
            x = _block(*arguments)
        if i in returned:
            maps.append(tokens_to_map(x, H, W))
    levels = zip(b.levels, maps, strict=True)
    return tuple(norm(_stack(resize, x, processes)) for (_, _, resize, norm), x in levels)


def _block(block: XCABlock, x: Tensor, H: int, W: int, processes: '_Processes') -> Tensor:
    keep = processes.drop_path_factors(block.drop_path, x)
    x = x + keep() * block.gamma1 * _attention(block.attn, block.norm1(x), processes)
    x = x + keep() * block.gamma3 * _interaction(block.local_mp, block.norm3(x), H, W, processes)
    return x + keep() * block.gamma2 * block.mlp(block.norm2(x))


def _attention(attn: nn.Module, x: Tensor, processes: '_Processes') -> Tensor:
    """Compute the attention of tokens (B, n, C) with the moments of all processes."""
    _require_plain(attn)
    x = x.to(computed_dtype(x))
    with without_autocast(x):
        x, G, s = with_moments(x)
        all_G, s, N = from_sums(processes.sum(to_sums(G, s, x.shape[1])))
        M, m = mixing(all_G.to(G.dtype), s, N, *attn.weights)
        return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))


def _interaction(lpi: LPI, x: Tensor, H: int, W: int, processes: '_Processes') -> Tensor:
    _require_plain(lpi)
    x = lpi.act(_convolution(lpi.conv1, tokens_to_map(x, H, W), processes))
    x = _batch_norm(lpi.bn, x, processes)
    return map_to_tokens(_convolution(lpi.conv2, x, processes))


def _stack(stack: nn.Module, x: Tensor, processes: '_Processes') -> Tensor:
    """Compute the patch embedding or a level of the pyramid; only convolutions read other rows."""
    for layer in flat_layers(stack):
        if isinstance(layer, nn.Conv2d):
            x = _convolution(layer, x, processes)
        elif isinstance(layer, nn.BatchNorm2d):
            x = _batch_norm(layer, x, processes)
        else:
            x = layer(x)
    return x


def _convolution(conv: nn.Conv2d, x: Tensor, processes: '_Processes') -> Tensor:
    """Convolve with a 3x3 kernel, padding 1, stride 1 or 2, and rows of neighbouring processes."""
    below = 1 if conv.stride[0] == 1 or processes.is_last else 0
    x = _Halo.apply(x, below, processes)
    geometry = conv.stride, (0, 1), conv.dilation, conv.groups
    return F.conv2d(x, conv.weight, conv.bias, *geometry)


def _batch_norm(norm: nn.BatchNorm2d, x: Tensor, processes: '_Processes') -> Tensor:
    """Normalise with the statistics of all processes, and update the running statistics."""
    if not norm.training:
        return norm(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    sums = wide.sum((0, 2, 3))
    number = sums.new_tensor([x.numel() // x.shape[1]])
    sums, count = processes.sum(torch.cat((sums, number))).split((len(sums), 1))
    count = count.detach()
    mean = sums / count
    centred = wide - mean[:, None, None]
    variance = processes.sum(centred.square().sum((0, 2, 3))) / count
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
        unbiased = variance * (count / (count - 1))
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
    factor = norm.weight * (variance + norm.eps).rsqrt()
    return (centred * factor[:, None, None] + norm.bias[:, None, None]).to(x.dtype)


def _require_plain(module: nn.Module) -> None:
    if not has_plain_layers(module):
        raise ArgumentError(
            f'a {type(module).__name__} with hooks or replaced layers cannot be shared by several '
            'processes: merge them into its weights first'
        )


class _Processes:
    """The processes that share an image, and the exchange of data between them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.is_last = self.rank == self.count - 1

    def all_gather(self, content: object) -> list:
        """Return the contents of all processes."""
        contents = [None] * self.count
        dist.all_gather_object(contents, content, group=self.group)
        return contents

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes."""
        return _Sum.apply(x, self.group)

    def drop_path_factors(self, drop_path: nn.Module, x: Tensor) -> Callable[[], Tensor | float]:
        """Return a function that draws the factor (B, 1, 1) of a branch, equal on all processes."""
        if not drop_path.training or not drop_path.p:
            return lambda: 1.0
        share = 1.0 - drop_path.p

        def draw() -> Tensor:
            factor = x.new_empty(x.shape[0], 1, 1).bernoulli_(share).div_(share)
            dist.broadcast(factor, dist.get_global_rank(self.group, 0), group=self.group)
            return factor

        return draw

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
    """Extend a map by one row of the process above and ``below`` rows of the next, or by zeros."""

    @staticmethod
    def forward(ctx, x: Tensor, below: int, processes: _Processes) -> Tensor:
        ctx.below, ctx.processes = below, processes
        first, last = x[:, :, :1], x[:, :, -1:]
        above, under = processes.swap(first, last)
        return torch.cat([above, x, under][: 2 + below], dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx, dx: Tensor) -> tuple[Tensor, None, None]:
        below, processes = ctx.below, ctx.processes
        of_above = dx[:, :, :1].contiguous()
        of_under = dx[:, :, -1:].contiguous() if below else torch.zeros_like(of_above)
        to_first, to_last = processes.swap(of_above, of_under)
        end = dx.shape[2] - below
        dx = dx[:, :, 1:end].clone()
        dx[:, :, :1] += to_first
        dx[:, :, -1:] += to_last
        return dx, None, None
