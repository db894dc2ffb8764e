"""Polygons of the classes of a label image of any size."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import shapely
from shapely.geometry import shape

from ...base.files import unfinished_folder
from ...base.geometry import tiles, whole
from ...large.labels.outlines import built, taken_apart
from .vector_layers import TOGETHER, LayerPart

BLOCK = 2048  # pixels of the side of a block whose labels are read together


@contextmanager
def without_small_regions(
    labels: np.ndarray, pixels: int, nodata: int, folder: Path
) -> Iterator[np.ndarray]:
    """Yield labels (H, W) in which smaller regions have the label of their largest neighbor.

    A region that only pixels without data surround is kept. The labels are a memory map of a
    file in ``folder``, which is removed at the end.
    """
    from rasterio.features import sieve

    with unfinished_folder(folder, 'labels') as temporary:
        valid, merged = (
            np.memmap(temporary / name, dtype, 'w+', shape=labels.shape)
            for name, dtype in (('valid', np.uint8), ('labels', labels.dtype))
        )
        for window in tiles(whole(labels.shape), (BLOCK, BLOCK)):
            valid[tuple(window)] = labels[tuple(window)] != nodata
        sieve(labels, min(pixels, labels.size), merged, valid)
        try:
            yield merged
        finally:
            del valid, merged


def label_polygons(
    labels: np.ndarray, nodata: int, simplify: float | None = None
) -> Iterator[LayerPart]:
    """Yield the polygons of the regions of a label image (H, W), in parts.

    A region consists of pixels with one label that share sides. Without ``simplify``, the polygons
    follow the sides of the pixels.

    Args:
        labels: uint8 or int16; an array or a memory map.
        nodata: The label of pixels without data, which belong to no polygon.
        simplify: The tolerance of a simplification in pixels, see ``shapely.coverage_simplify``.
            Neighbors still share their borders.
    """
    from rasterio import features

    outlines = ((shape(outline), int(value)) for outline, value in features.shapes(labels))
    if simplify is not None:
        outlines = _simplified(outlines, simplify, labels.shape)
    outlines, first = ((p, label) for p, label in outlines if label != nodata), True
    while (part := [*islice(outlines, TOGETHER)]) or first:
        polygons = np.array([polygon for polygon, _ in part], object)
        yield LayerPart(polygons, np.array([n for _, n in part], int), shapely.area(polygons))
        first = False  # a layer without polygons has one part


def _simplified(
    outlines: Iterator[tuple[shapely.Polygon, int]], tolerance: float, size: tuple[int, int]
) -> Iterator[tuple[shapely.Polygon, int]]:
    polygons, labels = zip(*outlines, strict=True)
    # A corner at each pixel, because polygons with a common border need the same corners.
    polygons = shapely.transform(shapely.segmentize(polygons, 1), np.round)
    simplified = shapely.coverage_simplify(polygons, tolerance, simplify_boundary=False)
    return zip(_with_straight_boundary(simplified, size), labels, strict=True)


def _with_straight_boundary(polygons: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Remove the corners within the sides of the image (H, W), which its simplification keeps."""
    corners, rings, offsets = taken_apart(polygons)
    is_straight = (corners == np.roll(corners, 1, 0)) & (corners == np.roll(corners, -1, 0))
    is_straight &= (corners == 0) | (corners == size[::-1])
    kept = ~is_straight.any(axis=1)
    kept[rings[:-1]] = kept[rings[1:] - 1] = True
    starts = np.concatenate([[0], np.cumsum(kept)])[rings]
    return built(corners[kept], starts, offsets)
