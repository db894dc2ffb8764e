"""The masks of objects in regions, cut out on the device for all images at once."""

from collections.abc import Sequence

import numpy as np
import torch
from mmcv.ops import roi_align
from mmdet.structures.mask import BitmapMasks
from torch import Tensor

MAX_MASKS = 128  # in float32 at once: mmdet's largest number of boxes of one image


def are_bitmaps(masks: Sequence[object]) -> bool:
    """Return whether the masks of all images are bitmaps of one size."""
    if not all(type(each) is BitmapMasks for each in masks):
        return False
    return len({(each.height, each.width) for each in masks}) == 1


def on_device(masks: Sequence[BitmapMasks], device: torch.device) -> Tensor:
    """Return the masks of all images (G, 1, H, W) as bytes; the copy runs beside Python."""
    parts = [torch.from_numpy(each.masks.astype(np.uint8, copy=False)) for each in masks]
    if device.type == 'cuda':
        parts = [each.pin_memory().to(device, non_blocking=True) for each in parts]
    return torch.cat(parts)[:, None]


def mask_targets(masks: Tensor, boxes: Tensor, objects: Tensor, size: int) -> Tensor:
    """Return the part of an object's mask in each box, as mmdet's ``mask_target`` does.

    mmdet copies the whole mask of an object for each box.

    Args:
        masks: (G, 1, H, W), 0 or 1.
        boxes: (n, 4) in pixels.
        objects: (n,), the mask of each box.
        size: Side of the parts.

    Returns:
        (n, size, size), 0 or 1 in float32.
    """
    if len(masks) > MAX_MASKS:
        chunks = zip(boxes.split(MAX_MASKS), objects.split(MAX_MASKS), strict=True)
        return torch.cat([_cut_out(masks[numbers], part, None, size) for part, numbers in chunks])
    return _cut_out(masks, boxes, objects, size)


def _cut_out(masks: Tensor, boxes: Tensor, objects: Tensor | None, size: int) -> Tensor:
    """Return the parts of masks in boxes; without ``objects``, each box has a mask."""
    H, W = masks.shape[2:]
    if objects is None:
        objects = torch.arange(len(boxes), device=boxes.device)
    x, y = boxes[:, 0::2].clamp(0, W), boxes[:, 1::2].clamp(0, H)
    regions = torch.stack((objects.to(x), x[:, 0], y[:, 0], x[:, 1], y[:, 1]), dim=1)
    parts = roi_align(masks.to(x), regions, (size, size), 1.0, 0, 'avg', True)
    return (parts[:, 0] >= 0.5).float()
