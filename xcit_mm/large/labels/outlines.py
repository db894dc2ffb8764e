"""Outlines of regions of pixels with one value."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import shapely

POLYGONS = shapely.GeometryType.POLYGON


def outlines_of(
    values: np.ndarray, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the polygons (n,) of regions of pixels that share sides, and the value of each.

    The coordinates are the corners of pixels of ``values`` (H, W), uint8 or int16. Where ``mask``
    (H, W) is false, there are no regions.
    """
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


def outlines_of_masks(masks: Iterable[tuple[Sequence[int], np.ndarray]]) -> np.ndarray:
    """Return a MultiPolygon (n,) of each of n masks along the sides of its pixels.

    Args:
        masks: For each mask, the corner x and y of a window of the image, and the mask (h, w) in
            the window, bool. An empty mask has an empty MultiPolygon.
    """
    from rasterio import Env

    with Env():  # otherwise, each call sets up GDAL, which takes longer than an outline
        outlines = [_outline(corner, mask) for corner, mask in masks]
    return np.array(outlines, object)


def _outline(corner: Sequence[int], mask: np.ndarray) -> shapely.MultiPolygon:
    if not mask.size:
        return shapely.MultiPolygon()
    polygons, _ = outlines_of(mask.astype(np.uint8), mask)
    return shapely.transform(shapely.multipolygons(polygons), lambda xy: xy + corner)


def outlines_by_label(polygons: np.ndarray, labels: np.ndarray) -> dict[int, shapely.MultiPolygon]:
    """Return the polygons (n,) of each of the labels (n,) as a MultiPolygon, by label."""
    present = np.unique(labels).tolist()
    return {label: shapely.multipolygons(polygons[labels == label]) for label in present}


def built(corners: np.ndarray, rings: np.ndarray, polygons: np.ndarray) -> np.ndarray:
    """Return polygons (n,) from corners (m, 2) and the offsets of rings and polygons."""
    if len(polygons) == 1:
        return np.empty(0, object)
    return shapely.from_ragged_array(POLYGONS, corners, (rings, polygons))


def taken_apart(polygons: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corners (m, 2) and the offsets of rings and polygons of polygons (n,)."""
    _, corners, (rings, offsets) = shapely.to_ragged_array(polygons)
    return corners, rings, offsets
