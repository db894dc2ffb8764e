"""Areas of annotation tools that are neither upright boxes nor polygons, as shapes in pixels."""

import math
from collections.abc import Sequence

import numpy as np
from pycocotools import mask as coco_mask

from ..audit.annotations import usable_mask
from ..transforms.rotation import rotated
from .base import LabelError, Shape, Size

ELLIPSE_CORNERS = 360  # 0.01 pixels from an ellipse with a radius of 260 pixels


def ellipse(center: Sequence[float], radii: Sequence[float], degrees: float = 0) -> list[float]:
    """Return the polygon of an ellipse that is rotated clockwise around its center."""
    angles = np.linspace(0, 2 * math.pi, ELLIPSE_CORNERS, endpoint=False)
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii + center
    return rotated(corners.ravel(), center, degrees)


def placed(pixels: np.ndarray, corner: Size, size: Size) -> np.ndarray:
    """Return the mask (H, W) of an image of the pixels (h, w) of a window.

    ``corner`` are x and y of its first pixel. Raises a ValueError if it is not within the image.
    """
    (x, y), mask = corner, np.zeros(size[::-1], bool)
    window = mask[max(y, 0) : y + pixels.shape[0], max(x, 0) : x + pixels.shape[1]]
    if window.shape != pixels.shape:
        raise ValueError(f'a mask of {pixels.shape[::-1]} pixels from {corner} is not within it')
    window[:] = pixels
    return mask


def joined(parts: Sequence[Shape], size: Size, place: str) -> Shape:
    """Return the shape of an object: its only part, or the mask of several."""
    if len(parts) == 1:
        return parts[0]
    mask = np.zeros(size[::-1], bool)
    for part in parts:
        mask |= as_mask(part, size, place)
    return mask


def as_mask(area: Shape, size: Size, place: str) -> np.ndarray:
    """Return a mask, or the mask (H, W) of a polygon as pycocotools draws it.

    Raises:
        LabelError: If the outline of the polygon is too long.
    """
    if isinstance(area, np.ndarray):
        return area
    width, height = size
    corners = np.reshape(area, (-1, 2)).clip(0, size).ravel().tolist()
    usable = usable_mask([corners], dict(width=width, height=height))
    if not usable:
        raise LabelError(f'{place}: the outline is too long to be drawn')
    (rle,) = coco_mask.frPyObjects(usable, height, width)
    return coco_mask.decode(rle).astype(bool)
