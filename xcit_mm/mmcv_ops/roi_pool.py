"""Pooling of regions: the maximum (Fast R-CNN, Girshick 2015), and the average of moved bins."""

import torch
from torch import Tensor

from .gradients import at_least_float32, gradients
from .sampling import MAX_ELEMENTS, regions


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Write the maximum of each bin into ``output``, and its pixel (y * W + x) into ``argmax``.

    torchvision's operator of this name rounds the corners of a region; mmcv's does not.
    """
    C, H, W = input.shape[1:]
    size = pooled_height, pooled_width
    (corners,) = at_least_float32(rois[:, 1:])
    starts = (corners[:, :2] * spatial_scale)[:, [1, 0]]  # y, x
    extents = ((corners[:, 2:] + 1) * spatial_scale)[:, [1, 0]] - starts
    begins, lengths = [], []
    for axis, (bins, limit) in enumerate(zip(size, (H, W), strict=True)):
        edges = torch.arange(bins + 1, device=rois.device) * (extents[:, axis : axis + 1] / bins)
        edges = edges + starts[:, axis : axis + 1]
        begin = edges[:, :-1].floor().clamp(0, limit).long()
        begins.append(begin)
        lengths.append(edges[:, 1:].ceil().clamp(0, limit).long() - begin)
    output.zero_()
    argmax.fill_(-1)
    pixels = input.permute(0, 2, 3, 1)
    grids = torch.stack([length.amax(1) for length in lengths], dim=1)
    for rows, columns in grids.unique(dim=0).tolist():
        members = (grids == grids.new_tensor([rows, columns])).all(1) & (extents > 0).all(1)
        if rows <= 0 or columns <= 0:
            continue
        elements = C * pooled_height * pooled_width * rows * columns
        for index in members.nonzero()[:, 0].split(max(1, MAX_ELEMENTS // elements)):
            (y, in_y), (x, in_x) = (
                _pixels(begins[axis][index], lengths[axis][index], points, limit)
                for axis, points, limit in ((0, rows, H), (1, columns, W))
            )
            y, x = y[:, :, None, :, None], x[:, None, :, None, :]  # (n, height, width, bin)
            inside = (in_y[:, :, None, :, None] & in_x[:, None, :, None, :]).flatten(3)[..., None]
            batch = rois[index, 0].long().view(-1, 1, 1, 1, 1)
            values = pixels[batch, y, x].flatten(3, 4).masked_fill(~inside, -torch.inf)
            values, point = (t.permute(0, 3, 1, 2) for t in values.max(3))
            pixel = (y * W + x).flatten(3)[:, None].expand(*point.shape, -1)
            pixel = pixel.gather(4, point[..., None])[..., 0]
            is_empty = values == -torch.inf
            output[index] = values.masked_fill(is_empty, 0)
            argmax[index] = pixel.masked_fill(is_empty, -1).to(argmax.dtype)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of each maximum to its pixel in ``grad_input``."""
    grads = torch.where(argmax < 0, 0, grad_output).flatten(2)
    C = grad_input.shape[1]
    batch = rois[:, 0].long()[:, None, None]
    channel = torch.arange(C, device=rois.device)[:, None]
    pixel = argmax.clamp(min=0).long().flatten(2)
    grad_input.flatten(2).index_put_((batch, channel, pixel), grads, accumulate=True)


def deform_roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    output: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Average the bins of regions, moved by ``offset`` (n, 2, height, width) if it is not empty.

    The offset is a fraction of the region's width and height, times ``gamma`` (Deformable
    Convolutional Networks, Dai et al. 2017, section 2.2).
    """
    output.zero_()
    input, rois, offset = at_least_float32(input, rois, offset)
    size = pooled_height, pooled_width
    for region in regions(rois, input.shape[1], size, spatial_scale, sampling_ratio):
        moves = offset[region.index] if offset.numel() else None
        output[region.index] = _moved_average(input, moves, region, gamma).to(output.dtype)


def deform_roi_pool_backward(
    grad_output: Tensor,
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Add the gradient of the input to ``grad_input``, and write that of the offset."""
    size = pooled_height, pooled_width
    (rois,) = at_least_float32(rois)
    for region in regions(rois, input.shape[1], size, spatial_scale, sampling_ratio):
        has_offset = offset.numel() > 0
        inputs = [input, offset[region.index]] if has_offset else [input]

        def average(maps: Tensor, moves: Tensor | None = None, region=region) -> Tensor:
            return _moved_average(maps, moves, region, gamma)

        of_input, *of_moves = gradients(average, inputs, grad_output[region.index])
        grad_input.add_(of_input.to(grad_input.dtype))
        if has_offset:
            grad_offset[region.index] = of_moves[0].to(grad_offset.dtype)


def _moved_average(input: Tensor, moves: Tensor | None, region, gamma: float) -> Tensor:
    if moves is None:
        samples = region.sample(input)
    else:
        width, height = gamma * region.width[:, None, None], gamma * region.height[:, None, None]
        samples = region.sample(input, dy=height * moves[:, 1], dx=width * moves[:, 0])
    return samples.mean(3).permute(0, 3, 1, 2)


def _pixels(begin: Tensor, length: Tensor, points: int, limit: int) -> tuple[Tensor, Tensor]:
    """Return the pixels (n, bins, points) from ``begin`` on, and which of them are in the bin."""
    steps = torch.arange(points, device=begin.device)
    return (begin[..., None] + steps).clamp(max=limit - 1), steps < length[..., None]
