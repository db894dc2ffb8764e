"""Labels for segmentors that are drawn from polygons, window by window."""

from pathlib import Path

import numpy as np
import shapely

from ...base.geometry import Window
from ..files.image_source import ImageSource
from .labeled_polygons import LabeledPolygons
from .outlines import from_arrays, to_arrays

MIN_CORNERS = 4  # of a ring, whose last corner is its first one
# Corners are rounded to fractions of a pixel that are exact in the coordinates of each window, too.
STEPS = 2**16


class PolygonLabels(ImageSource):
    """The class of each pixel as an image of one channel: the class of the polygon at its center.

    Where polygons overlap, the class with the largest number wins, and ignored areas win over all
    classes.

    Args:
        path: The file of the polygons.
        size: (H, W) of the image.
        polygons: The polygons.
        outside: The label of pixels in no polygon.
        ignored: The label of ignored areas.
    """

    def __init__(
        self,
        path: Path,
        size: tuple[int, int],
        polygons: LabeledPolygons,
        outside: int,
        ignored: int,
    ) -> None:
        most = max(outside, ignored, int(polygons.labels.max(initial=0)))
        super().__init__(str(path), path, (*size, 1), np.min_scalar_type(most))
        self.polygons, self._outside, self._ignored = polygons, outside, ignored

    def _read(self, window: Window) -> np.ndarray:
        from rasterio import Affine
        from rasterio.features import rasterize

        numbers = self.polygons.touching(window)
        labels = np.where(
            self.polygons.are_ignored[numbers], self._ignored, self.polygons.labels[numbers]
        )
        order = np.argsort(labels, kind='stable')
        shapes, places = shapely.get_parts(self.polygons.shapes[numbers[order]], return_index=True)
        shapes, drawn = _reduced_outside(shapes, window)
        values = labels[order][places[drawn]].tolist()
        if not values:
            return np.full((*window.size, 1), self._outside, self.dtype)
        rows, columns = window
        return rasterize(
            zip(shapes, values, strict=True),
            out_shape=window.size,
            fill=self._outside,
            transform=Affine.translation(columns.start, rows.start),
            dtype=self.dtype.name,
        )[..., None]


def _reduced_outside(polygons: np.ndarray, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return polygons (n,) with fewer corners that cover the same pixels of a window.

    A polygon may have millions of corners outside the window, which would cost most of the time.
    If consecutive corners are on one side of the window, only the first and the last are kept. All
    edges that cross the window stay as they are: clipping would round where it cuts them, and move
    pixels whose centers are on an edge. Outside, the polygons may cross themselves.

    Returns:
        The polygons, and the numbers (m,) of those that are not on one side as a whole.
    """
    if not len(polygons):
        return polygons, np.empty(0, int)
    corners, rings, offsets = to_arrays(polygons)
    corners = np.round(corners * STEPS) / STEPS
    sides = np.zeros(len(corners), np.int8)
    for axis, span in enumerate((window.columns, window.rows)):
        sides[corners[:, axis] < span.start - 1] = 2 * axis + 1
        sides[corners[:, axis] > span.stop + 1] = 2 * axis + 2
    remains = np.ones(len(corners), bool)
    remains[1:-1] = (sides[1:-1] == 0) | (sides[1:-1] != sides[:-2]) | (sides[1:-1] != sides[2:])
    remains[rings[:-1]] = remains[rings[1:] - 1] = True
    before = np.concatenate([[0], np.cumsum(remains)])
    lengths = np.diff(before[rings])
    is_ring = lengths >= MIN_CORNERS  # a ring on one side has no more than its ends
    remains &= np.repeat(is_ring, np.diff(rings))
    number = np.concatenate([[0], np.cumsum(is_ring)])[offsets]
    is_polygon = np.diff(number) > 0
    rings = np.concatenate([[0], np.cumsum(lengths[is_ring])])
    offsets = np.concatenate([[0], number[1:][is_polygon]])
    return from_arrays(corners[remains], rings, offsets), np.flatnonzero(is_polygon)
