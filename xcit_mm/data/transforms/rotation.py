"""Boxes and polygons that are rotated clockwise, in pixels."""

import math
from collections.abc import Sequence

import numpy as np


def rotated_box(box: Sequence[float], pivot: Sequence[float], degrees: float) -> list[float]:
    """Return a box x1, y1, x2, y2, or its polygon if it is rotated clockwise around a point."""
    x1, y1, x2, y2 = box
    return rotated([x1, y1, x2, y1, x2, y2, x1, y2], pivot, degrees) if degrees else [*box]


def rotated(polygon: Sequence[float], pivot: Sequence[float], degrees: float) -> list[float]:
    """Return a polygon that is rotated clockwise around a point."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    corners = np.reshape(polygon, (-1, 2)) - pivot
    return (corners @ [[cosine, sine], [-sine, cosine]] + pivot).ravel().tolist()
