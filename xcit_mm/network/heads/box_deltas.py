"""Boxes to deltas and back, as mmdet's DeltaXYWHBBoxCoder computes them, for any shape of boxes.

mmdet's coder copies its constants to the device in each call, and waits for that.
"""

import math
from functools import lru_cache

import torch
from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder
from torch import Tensor

MAX_LOG_RATIO = abs(math.log(16 / 1000))  # of a decoded side to that of the box


def can_code(coder: object) -> bool:
    """Return whether :func:`encode` and :func:`decode` do what a coder does."""
    return type(coder) is DeltaXYWHBBoxCoder and not coder.add_ctr_clamp and not coder.use_box_type


def encode(coder: DeltaXYWHBBoxCoder, boxes: Tensor, targets: Tensor) -> Tensor:
    """Return the deltas (..., 4) from boxes (..., 4) to targets (..., 4)."""
    center, size = (boxes[..., :2] + boxes[..., 2:]) * 0.5, boxes[..., 2:] - boxes[..., :2]
    to_center = (targets[..., :2] + targets[..., 2:]) * 0.5
    to_size = targets[..., 2:] - targets[..., :2]
    deltas = torch.cat([(to_center - center) / size, (to_size / size).log()], dim=-1)
    return deltas.sub_(_constant(coder.means, deltas)).div_(_constant(coder.stds, deltas))


def decode(coder: DeltaXYWHBBoxCoder, boxes: Tensor, deltas: Tensor) -> Tensor:
    """Return the boxes (..., 4) at deltas (..., 4) from boxes (..., 4), which are not clipped."""
    deltas = deltas * _constant(coder.stds, deltas) + _constant(coder.means, deltas)
    center, size = (boxes[..., :2] + boxes[..., 2:]) * 0.5, boxes[..., 2:] - boxes[..., :2]
    center = center + size * deltas[..., :2]
    half = size * deltas[..., 2:].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * 0.5
    return torch.cat([center - half, center + half], dim=-1)


def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    return _on_device(tuple(values), like.dtype, like.device)


@lru_cache(64)
@torch.inference_mode(False)
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
