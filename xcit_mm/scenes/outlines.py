"""Outlines of regions of pixels with one value."""

from array import array
from itertools import chain

import numpy as np
import shapely

from ..environment import require

POLYGONS = shapely.GeometryType.POLYGON


def outlines_of(
    values: np.ndarray, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the polygons (n,) of regions of pixels that share sides, and the value of each.

    The coordinates are the corners of pixels of ``values`` (H, W), uint8 or int16. Where ``mask``
    (H, W) is false, there are no regions.
    """
    require('rasterio')
    from rasterio import features

    corners, rings, polygons, found = array('d'), array('q', [0]), array('q', [0]), array('q')
    for shape, value in features.shapes(values, mask):
        for ring in shape['coordinates']:
            corners.extend(chain.from_iterable(ring))
            rings.append(len(corners) // 2)
        polygons.append(len(rings) - 1)
        found.append(int(value))
    return built(np.array(corners).reshape(-1, 2), np.array(rings), np.array(polygons)), np.array(
        found, np.int64
    )


def built(corners: np.ndarray, rings: np.ndarray, polygons: np.ndarray) -> np.ndarray:
    """Return polygons (n,) from corners (m, 2) and the offsets of rings and polygons."""
    if len(polygons) == 1:
        return np.empty(0, object)
    return shapely.from_ragged_array(POLYGONS, corners, (rings, polygons))


def taken_apart(polygons: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corners (m, 2) and the offsets of rings and polygons of polygons (n,)."""
    _, corners, (rings, offsets) = shapely.to_ragged_array(polygons)
    return corners, rings, offsets
