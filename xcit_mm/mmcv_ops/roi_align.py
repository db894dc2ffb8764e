"""RoIAlign (Mask R-CNN, He et al. 2017): the average of samples in each bin of a region.

In a channels-last map, each pixel is a row of memory. On a CPU, the average of a bin is a weighted
sum of such rows, which ``F.embedding_bag`` computes with all threads. All other maps are averaged
by torchvision, which uses one thread on a CPU.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..base.errors import MissingOperatorError
from .gradients import at_least_float32, gradients
from .sampling import sample_grids

MAX = 0  # pool_mode; 1 is the average
MAX_WEIGHTS = 2**22  # of the pixels that are summed at once
MAX_REGIONS = 64  # all of their bins are padded to the pixels of the largest bin


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average regions (n, 5) of a map (B, C, H, W) into ``output`` (n, C, height, width)."""
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    if pool_mode == MAX:
        raise MissingOperatorError(
            "mmcv.ops: roi_align with pool_mode='max' needs compiled mmcv; build mmcv with its "
            "operators (MMCV_WITH_OPS=1) or use pool_mode='avg'"
        )
    size = aligned_height, aligned_width
    is_channels_last = input.is_contiguous(memory_format=torch.channels_last)
    in_rows = is_channels_last and not input.is_contiguous() and input.device.type == 'cpu'
    # The gradient needs the same algorithm to be equal to torchvision's in the last bit wherever
    # the output is. mmcv passes this tensor, which is empty for an average, to the backward
    # function, but not the map.
    argmax_y.resize_(int(in_rows))
    if in_rows:
        options = size, spatial_scale, sampling_ratio, aligned
        pixels = input.permute(0, 2, 3, 1).flatten(0, 2)
        for index, places, weights in _bins(input.shape, rois, *options):
            weights = weights.to(pixels.dtype)
            average = F.embedding_bag(places, pixels, mode='sum', per_sample_weights=weights)
            output[index] = average.unflatten(0, (-1, *size)).permute(0, 3, 1, 2).to(output.dtype)
    else:
        options = spatial_scale, *size, sampling_ratio, aligned
        output.copy_(torch.ops.torchvision.roi_align(*at_least_float32(input, rois), *options))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of :func:`roi_align_forward` to its input into ``grad_input``."""
    size = aligned_height, aligned_width
    if not argmax_y.numel():  # not in rows
        options = spatial_scale, *size, *grad_input.shape, sampling_ratio, aligned
        operator = torch.ops.torchvision._roi_align_backward
        grad_input.copy_(operator(*at_least_float32(grad_output, rois), *options))
        return
    options = size, spatial_scale, sampling_ratio, aligned
    rows = grad_input.permute(0, 2, 3, 1)  # (B, H, W, C)
    pixels, grads = at_least_float32(rows.flatten(0, 2), grad_output.permute(0, 2, 3, 1))
    total = torch.zeros_like(pixels)
    for parts in _joined(_bins(grad_input.shape, rois, *options)):
        index, places, weights = zip(*parts, strict=True)
        numbers = torch.cat([p.new_full(p.shape[:1], p.shape[1]) for p in places])
        places, weights = (torch.cat([t.flatten() for t in ts]) for ts in (places, weights))
        average = partial(
            F.embedding_bag,
            places,
            offsets=numbers.cumsum(0) - numbers,
            mode='sum',
            per_sample_weights=weights.to(pixels.dtype),
        )
        total += gradients(average, [pixels], grads[torch.cat(index)].flatten(0, 2))[0]
    rows.copy_(total.view(rows.shape))


def _bins(
    shape: Sequence[int],
    rois: Tensor,
    bins: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the pixels of maps of a shape (B, C, H, W) that regions (n, 5) average.

    Bilinear samples on a grid are sums over rows of sums over columns: a bin has a weight for each
    row and for each column of pixels that it touches.

    Yields:
        The indices of some of the regions; the pixels of each of their bins, as rows of the maps
        (B * H * W, C); and the weights of these pixels, (bins, pixels) both.
    """
    H, W = shape[2:]
    (rois,) = at_least_float32(rois)
    image = rois[:, 0].long()
    starts, _, steps, points = sample_grids(rois, bins, spatial_scale, sampling_ratio, aligned)
    order = points[:, 1].argsort()
    order = order[points[order, 0].argsort(stable=True)]  # regions of one size together
    while len(order):
        largest = int((points[order[:MAX_REGIONS]].clamp(min=1).amax(0) + 2).prod())
        number = max(1, min(MAX_REGIONS, MAX_WEIGHTS // (largest * math.prod(bins))))
        index, order = order[:number], order[number:]
        (y, wy), (x, wx) = (
            _axis(starts[index, i], steps[index, i], points[index, i], bins[i], shape[2 + i])
            for i in range(2)
        )
        y = (image[index, None, None] * H + y) * W
        places = y[:, :, None, :, None] + x[:, None, :, None, :]  # (n, h, w, rows, columns)
        weights = wy[:, :, None, :, None] * wx[:, None, :, None, :]
        yield index, *(t.flatten(3).flatten(0, 2) for t in (places, weights))


def _joined(parts: Iterator[tuple[Tensor, ...]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Yield lists of parts, with up to ``MAX_WEIGHTS`` weights if there is more than one."""
    some = []
    for part in parts:
        if some and sum(weights.numel() for *_, weights in (*some, part)) > MAX_WEIGHTS:
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _axis(
    start: Tensor, step: Tensor, points: Tensor, bins: int, length: int
) -> tuple[Tensor, Tensor]:
    """Return the pixels of bins of the length ``step`` and their weights, (n, bins, pixels) each.

    A bin is the average of ``points`` samples. Those outside the map have the weight 0.
    """
    step, points = step[:, None, None], points[:, None, None]
    i = torch.arange(max(1, int(points.amax())), device=start.device)
    corner = torch.arange(bins, device=start.device)[:, None] * step
    y = start[:, None, None] + corner + (i + 0.5) * step / points.clamp(min=1)
    weight = ((y >= -1) & (y <= length) & (i < points)) / points.clamp(min=1)
    y = y.clamp(0, length - 1)
    low = y.long()
    high = (low + 1).clamp(max=length - 1)
    first = low[..., :1]  # the samples ascend
    number = int((high - first).where(i < points, 0).amax()) + 1
    weights = weight.new_zeros(*y.shape[:2], number)
    for pixel, part in ((low, 1 - y + low), (high, y - low)):
        weights.scatter_add_(2, (pixel - first).clamp(max=number - 1), part * weight)
    return (first + torch.arange(number, device=y.device)).clamp(max=length - 1), weights
