"""Labels for segmentors that are drawn from polygons, window by window."""

from pathlib import Path

import numpy as np
import shapely

from ..environment import require
from .geometry import Window
from .image_source import ImageSource
from .labeled_polygons import LabeledPolygons


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
        require('rasterio')
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
        rows, columns = window
        # The corners outside the window, of which a polygon may have millions, cost most.
        edges = columns.start - 1, rows.start - 1, columns.stop + 1, rows.stop + 1
        shapes = shapely.clip_by_rect(self.polygons.shapes[numbers[order]], *edges)
        pairs = [(s, v) for s, v in zip(shapes, labels[order].tolist(), strict=True) if s.area]
        if not pairs:
            return np.full((*window.size, 1), self._outside, self.dtype)
        return rasterize(
            pairs,
            out_shape=window.size,
            fill=self._outside,
            transform=Affine.translation(columns.start, rows.start),
            dtype=self.dtype.name,
        )[..., None]
