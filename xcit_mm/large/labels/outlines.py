"""Outlines of regions of pixels with one value."""

from collections.abc import Iterable, Sequence

import numpy as np
import shapely
from shapely.geometry import shape

POLYGONS = shapely.GeometryType.POLYGON


def outlines_of(
    values: np.ndarray, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the polygons (n,) of regions of pixels that share sides, and the value of each.

    The coordinates are the corners of pixels of ``values`` (H, W), uint8 or int16. Where ``mask``
    (H, W) is false, there are no regions.
    """
    from rasterio import features

    outlines = [(shape(outline), value) for outline, value in features.shapes(values, mask)]
    polygons = np.array([polygon for polygon, _ in outlines], object)
    return polygons, np.array([value for _, value in outlines], np.int64)


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


def from_arrays(corners: np.ndarray, rings: np.ndarray, polygons: np.ndarray) -> np.ndarray:
    """Return polygons (n,) from corners (m, 2) and the offsets of rings and polygons."""
    if len(polygons) == 1:
        return np.empty(0, object)
    return shapely.from_ragged_array(POLYGONS, corners, (rings, polygons))


def to_arrays(polygons: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corners (m, 2) and the offsets of rings and polygons of polygons (n,)."""
    _, corners, (rings, offsets) = shapely.to_ragged_array(polygons)
    return corners, rings, offsets
