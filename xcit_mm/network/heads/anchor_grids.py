"""The anchors of all levels of a pyramid, which depend on the size of its maps alone."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from mmdet.models.task_modules.prior_generators import AnchorGenerator
from torch import Tensor

from .transfers import to_device

MAX_SIZES = 16  # whose anchors are kept, 8 MB each for 800x1344 pixels


class AnchorGrid(NamedTuple):
    """N anchors: their boxes (N, 4), levels (N,), and places (N, 2) in the map: row and column."""

    boxes: Tensor
    levels: Tensor
    places: Tensor
    counts: list[int]  # of each level
    sizes: list[tuple[int, int]]  # of the map of each level

    def in_images(
        self, generator: AnchorGenerator, shapes: Sequence[Sequence[int]]
    ) -> Tensor | None:
        """Return which anchors (B, N) lie in images of these padded shapes; None: all."""
        limits = [
            [(-(-shape[0] // y), -(-shape[1] // x)) for x, y in generator.strides]
            for shape in shapes
        ]  # rows and columns
        missing = (
            limit[axis] < size[axis]
            for of_image in limits
            for limit, size in zip(of_image, self.sizes, strict=True)
            for axis in (0, 1)
        )
        if not any(missing):
            return None
        of_levels = to_device(limits, torch.int32, self.boxes.device)  # (B, levels, 2)
        return (self.places < of_levels[:, self.levels]).all(dim=-1)


class AnchorGrids:
    """The anchor grids of the latest sizes of maps, in float32."""

    def __init__(self) -> None:
        self._grids: dict[tuple, AnchorGrid] = {}

    def of(self, generator: AnchorGenerator, maps: Sequence[Tensor]) -> AnchorGrid:
        """Return the anchors of maps (B, C, H, W) from the highest resolution on."""
        device, sizes = maps[0].device, [tuple(m.shape[2:]) for m in maps]
        key = generator, device, *sizes
        grid = self._grids.pop(key, None)
        if grid is None:
            with torch.inference_mode(False):
                grid = _build(generator, sizes, device)
            if len(self._grids) >= MAX_SIZES:
                del self._grids[next(iter(self._grids))]
        self._grids[key] = grid
        return grid


def _build(
    generator: AnchorGenerator, sizes: list[tuple[int, int]], device: torch.device
) -> AnchorGrid:
    boxes = generator.grid_priors(sizes, device=device)
    integer = partial(torch.arange, dtype=torch.int32, device=device)
    levels, places = [], []
    for level, ((H, W), of_cell) in enumerate(zip(sizes, generator.num_base_priors, strict=True)):
        cell = integer(H * W).repeat_interleave(of_cell, output_size=H * W * of_cell)
        places.append(torch.stack((cell // W, cell % W), dim=1))
        levels.append(torch.full_like(cell, level))
    counts = [len(each) for each in boxes]
    return AnchorGrid(torch.cat(boxes), torch.cat(levels), torch.cat(places), counts, sizes)
