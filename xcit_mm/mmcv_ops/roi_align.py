"""RoIAlign (Mask R-CNN, He et al. 2017): average by torchvision, maximum in PyTorch.

In a channels-last map, each pixel is a row of memory. On a CPU, the average of a bin is a weighted
sum of such rows, which ``F.embedding_bag`` computes with all threads; torchvision uses one.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from .gradients import at_least_float32, gradients
from .sampling import bilinear, regions

MAX = 0  # pool_mode; 1 is the average
# An average does not need ``argmax_y``: its length, 0 or this, tells the backward function which
# code has computed the average.
IN_ROWS = 1
MAX_WEIGHTS = 2**22  # of the pixels that are summed at once
MAX_REGIONS = 64  # whose bins have as many pixels as those of the largest of them


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
    """Pool regions (n, 5) of a map (B, C, H, W) into ``output`` (n, C, height, width).

    The position of a maximum goes into ``argmax_y`` and ``argmax_x``, in pixels of the map.
    """
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    size = aligned_height, aligned_width
    options = spatial_scale, sampling_ratio, aligned
    in_rows = input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
    if pool_mode != MAX and input.device.type == 'cpu' and in_rows:
        pixels = input.permute(0, 2, 3, 1).flatten(0, 2)
        for index, places, weights in _bins(input.shape, rois, size, *options):
            weights = weights.to(pixels.dtype)
            average = F.embedding_bag(places, pixels, mode='sum', per_sample_weights=weights)
            output[index] = average.unflatten(0, (-1, *size)).permute(0, 3, 1, 2).to(output.dtype)
        argmax_y.resize_(IN_ROWS)
        return
    input, rois = at_least_float32(input, rois)
    if pool_mode != MAX:
        operator = torch.ops.torchvision.roi_align
        output.copy_(operator(input, rois, spatial_scale, *size, *options[1:]))
        return
    output.zero_()
    argmax_y.fill_(-1)
    argmax_x.fill_(-1)
    for region in regions(rois, input.shape[1], size, *options):
        values, point = region.sample(input).max(3)
        point = point.permute(0, 3, 1, 2)  # (n, C, height, width), in the grid of a bin
        columns = region.x.shape[2]
        n, C = point.shape[:2]
        y = region.y[:, None, :, None, :].expand(n, C, *size, -1)
        x = region.x[:, None, None, :, :].expand(n, C, *size, -1)
        output[region.index] = values.permute(0, 3, 1, 2).to(output.dtype)
        argmax_y[region.index] = y.gather(4, point[..., None] // columns)[..., 0].to(argmax_y.dtype)
        argmax_x[region.index] = x.gather(4, point[..., None] % columns)[..., 0].to(argmax_x.dtype)


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
    corners = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    starts, extents = corners[:, [1, 0]], (corners[:, 2:] - corners[:, :2])[:, [1, 0]]  # y, x
    if not aligned:
        extents = extents.clamp(min=1)
    steps = extents / extents.new_tensor(bins)
    points = steps.ceil() if sampling_ratio <= 0 else torch.full_like(steps, sampling_ratio)
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
    if pool_mode == MAX:
        B, C, H, W = grad_input.shape
        # Each channel has points of its own: sample the channels as if they were images.
        image = rois[:, :1].long() * C + torch.arange(C, device=rois.device)
        y, x, grads = (t.flatten(2).flatten(0, 1) for t in (argmax_y, argmax_x, grad_output))
        grads = torch.where(y == -1, 0, grads)

        def sample(maps: Tensor) -> Tensor:
            return bilinear(maps.view(B * C, 1, H, W), image.flatten(), *at_least_float32(y, x))

        grad_input.copy_(*gradients(sample, [grad_input], grads[..., None]))
        return
    if len(argmax_y) == IN_ROWS:
        size, options = (aligned_height, aligned_width), (spatial_scale, sampling_ratio, aligned)
        rows = grad_input.permute(0, 2, 3, 1)  # (B, H, W, C)
        pixels, grads = at_least_float32(rows.flatten(0, 2), grad_output.permute(0, 2, 3, 1))
        total = torch.zeros_like(pixels)
        for parts in _joined(_bins(grad_input.shape, rois, size, *options)):
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
        return
    sizes = aligned_height, aligned_width, *grad_input.shape
    options = spatial_scale, *sizes, sampling_ratio, aligned
    operator = torch.ops.torchvision._roi_align_backward
    grad_input.copy_(operator(*at_least_float32(grad_output, rois), *options))
