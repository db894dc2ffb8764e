"""Boxes in a graph, in which blank boxes of size and score 0 replace missing objects."""

from collections.abc import Mapping
from typing import Any

import torch
import torchvision  # noqa: F401  registers torch.ops.torchvision
from torch import Tensor

NO_SCORE = 0.0  # of a blank box


def border_of(image: Tensor) -> Tensor:
    """Return the largest coordinates (4,) of boxes in an image (1, C, H, W)."""
    H, W = image.shape[2:]
    return torch.cat([image.new_full((1,), side) for side in (W, H, W, H)])


def clip(boxes: Tensor, border: Tensor) -> Tensor:
    """Return boxes (n, 4) within the border (4,)."""
    return boxes.clamp(min=0).minimum(border)


def are_larger(boxes: Tensor, size: float) -> Tensor:
    """Return which boxes (n, 4) have a width and a height above a size, (n,)."""
    return (boxes[:, 2:] - boxes[:, :2] > size).all(1)


def best(scores: Tensor, number: int, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the best scores (n,) and the values (n, ...) at their places, ``number`` of each.

    If there are fewer, zeros fill up the rest.
    """
    scores, places = torch.cat([scores, scores.new_full((number,), NO_SCORE)]).topk(number)
    filled = (torch.cat([t, t.new_zeros(number, *t.shape[1:])]) for t in values)
    return scores, *(t[places] for t in filled)


def nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, test_cfg: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the boxes that NMS keeps, filled up with blank boxes to ``max_per_img``.

    Shape:
        Boxes (n, 4), scores (n,) and the groups (n,) within which a box removes others, unless
        ``class_agnostic`` is set.
    """
    cfg, number = test_cfg['nms'], test_cfg['max_per_img']
    boxes, scores, groups = (  # a program of torch.export needs at least two boxes
        torch.cat([t, t.new_zeros(2, *t.shape[1:])]) for t in (boxes, scores, groups)
    )
    offsets = 0.0 if cfg.get('class_agnostic') else groups[:, None].to(boxes) * (boxes.max() + 1)
    places = torch.ops.torchvision.nms(boxes + offsets, scores, cfg['iou_threshold'])
    blanks = torch.full((number,), -1, device=places.device) + scores.shape[0]
    places = torch.cat([places, blanks])[:number]
    return boxes[places], scores[places], groups[places]
