"""Samples in the bins of regions of a map, for RoIAlign and deformable RoI pooling."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

MAX_ELEMENTS = 2**24  # of the values that are sampled at once


def bilinear(maps: Tensor, batch: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Sample maps (B, C, H, W) between their pixels.

    Points up to one pixel outside the map have the value at its border; others are zero. ``batch``
    is (n,), ``y`` and ``x`` are (n, ...) in pixels; returns (n, ..., C).
    """
    H, W = maps.shape[2:]
    inside = (y >= -1) & (y <= H) & (x >= -1) & (x <= W)
    y, x = y.clamp(0, H - 1), x.clamp(0, W - 1)
    top, left = y.detach().floor().long(), x.detach().floor().long()
    bottom, right = (top + 1).clamp(max=H - 1), (left + 1).clamp(max=W - 1)
    ly, lx = (y - top)[..., None], (x - left)[..., None]
    hy, hx = 1 - ly, 1 - lx
    pixels = maps.permute(0, 2, 3, 1)
    batch = batch.view(-1, *[1] * (y.dim() - 1))
    # In the order of compiled mmcv, so that the sums are equal to the last bit.
    value = (hy * hx) * pixels[batch, top, left] + (hy * lx) * pixels[batch, top, right]
    value = value + (ly * hx) * pixels[batch, bottom, left]
    value = value + (ly * lx) * pixels[batch, bottom, right]
    return value.where(inside[..., None], 0)


class Region(NamedTuple):
    """Regions with grids of one size: their ``index`` (n,), and where their samples are."""

    index: Tensor
    batch: Tensor  # (n,)
    y: Tensor  # (n, height of the output, rows of the grid in a bin)
    x: Tensor  # (n, width of the output, columns of the grid in a bin)
    height: Tensor  # (n,), in pixels of the map
    width: Tensor

    def sample(self, maps: Tensor, dy: Tensor | None = None, dx: Tensor | None = None) -> Tensor:
        """Return (n, height, width, points of a bin, C), the bins moved by dy, dx (n, h, w)."""
        n, height, rows = self.y.shape
        width, columns = self.x.shape[1:]
        shape = n, height, width, rows, columns
        y = self.y[:, :, None, :, None].expand(shape).flatten(3)
        x = self.x[:, None, :, None, :].expand(shape).flatten(3)
        if dy is not None:
            y, x = y + dy[..., None], x + dx[..., None]
        return bilinear(maps, self.batch, y, x)


def sample_grids(
    rois: Tensor,
    size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where RoIs (n, 5) are in a map and how they are sampled, each as (n, 2) for y and x.

    ``size`` is the number of bins. A bin has ``sampling_ratio`` samples in each direction, or one
    for each pixel if that is 0.

    Returns:
        The start and the extent of each region and the extent of its bins, in pixels of the map,
        and the samples in a bin.
    """
    corners = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    starts, extents = corners[:, [1, 0]], (corners[:, 2:] - corners[:, :2])[:, [1, 0]]
    if not aligned:
        extents = extents.clamp(min=1)
    bins = extents / extents.new_tensor(size)
    samples = bins.ceil() if sampling_ratio <= 0 else torch.full_like(bins, sampling_ratio)
    return starts, extents, bins, samples


def regions(
    rois: Tensor, channels: int, size: tuple[int, int], spatial_scale: float, sampling_ratio: int
) -> Iterator[Region]:
    """Group RoIs (n, 5) whose bins have the same grid of samples; leave out those without any.

    ``size`` is height and width of the output. For the other arguments see :func:`sample_grids`.
    """
    starts, extents, bins, samples = sample_grids(rois, size, spatial_scale, sampling_ratio)
    for rows, columns in samples.unique(dim=0).long().tolist():
        if rows <= 0 or columns <= 0:
            continue
        members = (samples == samples.new_tensor([rows, columns])).all(1).nonzero()[:, 0]
        elements = channels * size[0] * size[1] * rows * columns
        for index in members.split(max(1, MAX_ELEMENTS // elements)):
            y, x = (
                _positions(starts[index, axis], bins[index, axis], size[axis], points)
                for axis, points in enumerate((rows, columns))
            )
            batch = rois[index, 0].long()
            yield Region(index, batch, y, x, *extents[index].unbind(1))


def _positions(start: Tensor, bin_size: Tensor, bins: int, points: int) -> Tensor:
    start, bin_size = start[:, None, None], bin_size[:, None, None]
    corners = torch.arange(bins, device=start.device)[:, None] * bin_size
    within = (torch.arange(points, device=start.device) + 0.5).to(start) * bin_size / points
    return start + corners + within
