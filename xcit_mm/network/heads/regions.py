"""The features of regions of interest that are sorted by the levels of a pyramid."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from torch import Tensor


class Regions(NamedTuple):
    """Some rows of a list of regions, sorted by level.

    Attributes:
        rows: (n,), the numbers of the regions in the list.
        boxes: (n, 5), the number of the image and the corners in pixels, without negative areas.
        counts: The number of regions of each level.
    """

    rows: Tensor
    boxes: Tensor
    counts: list[int]

    def extract(self, extractor: SingleRoIExtractor, maps: Sequence[Tensor]) -> Tensor:
        """Return the features (n, C, h, w) of the regions in maps (B, C, H, W), both in float32."""
        parts = []
        layers = zip(maps, extractor.roi_layers, self.boxes.split(self.counts), strict=True)
        for x, layer, boxes in layers:
            with torch.autocast(x.device.type, enabled=False):
                # Without regions, the map still belongs to the loss: it gets a gradient of zeros.
                none = x[:0, :, :1, :1].expand(-1, -1, *layer.output_size)
                parts.append(layer(x, boxes) if len(boxes) else none)
        return torch.cat(parts)


def can_extract(extractor: object) -> bool:
    """Return whether :meth:`Regions.extract` does what an extractor does."""
    return (
        isinstance(extractor, SingleRoIExtractor)
        and type(extractor).forward is SingleRoIExtractor.forward
    )


def by_level(
    extractor: SingleRoIExtractor, boxes: Tensor, groups: Sequence[Tensor]
) -> list[Regions]:
    """Sort groups of regions by level, with a single wait for all their counts.

    Args:
        extractor: Maps boxes to levels by their areas.
        boxes: (n, 5), the number of the image and the corners in pixels.
        groups: For each group, which boxes belong to it (n,).
    """
    number = len(extractor.featmap_strides)
    # A box of negative area would have no level: the logarithm of its side is not a number.
    boxes = torch.cat((boxes[:, :3], boxes[:, 3:].maximum(boxes[:, 1:3])), dim=1)
    levels = extractor.map_roi_levels(boxes, number)
    # Boxes of other groups come last.
    levels = torch.stack([levels.where(group, number) for group in groups])
    sorted_levels, order = levels.sort(dim=1, stable=True)
    which = torch.arange(number, device=boxes.device)[:, None, None]
    counts = (sorted_levels == which).sum(dim=2).T.tolist()  # the wait
    return [
        Regions(rows[: sum(count)], boxes[rows[: sum(count)]], count)
        for rows, count in zip(order, counts, strict=True)
    ]
