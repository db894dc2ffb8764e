"""Masks of the pixels in polygons."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window
from ..files.image_source import ImageSource
from .masks import Mask
from .read_features import Features, in_pixels, not_in_image, read_features

WGS84 = 'EPSG:4326'  # the system of GeoJSON files that name none (RFC 7946)


class Polygons(Mask):
    """The pixels whose centers are in polygons, in pixels of the image."""

    def __init__(self, polygons: Sequence[Any], size: tuple[int, int]) -> None:
        import shapely

        self._tree = shapely.STRtree(polygons)
        left, top, right, bottom = shapely.total_bounds(polygons)
        self.box = Window.around((left, top, right, bottom), size).clipped(size)

    def read(self, window: Window) -> np.ndarray:
        import shapely
        from rasterio.features import rasterize
        from rasterio.transform import Affine

        rows, columns = window
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        near = self._tree.geometries[self._tree.query(box)]
        if not len(near):
            return np.zeros(window.size, bool)
        place = Affine.translation(columns.start, rows.start)
        inside = rasterize(near, window.size, transform=place, dtype=np.uint8)
        return inside.astype(bool)


def polygons_of(path: str | Path, image: ImageSource) -> Polygons:
    """Return the polygons of a GeoJSON file or GeoPackage in an image.

    They are converted to the reference system of the image. The coordinates of a file that names no
    system are map coordinates of the image or, if they lie outside, degrees. For an image without a
    reference system, they are pixels of the full image.

    Raises:
        UserError: If the file cannot be used, or has no polygon in the image.
    """
    features = read_features(path)
    inside = _placed(features, image)
    if not inside and features.crs is None and image.georeference.get('crs') is not None:
        with suppress(UserError):  # the coordinates are no degrees
            inside = _placed(replace(features, crs=WGS84), image)
    if not inside:
        raise not_in_image(image, features)
    return Polygons(inside, image.shape[:2])


def _placed(features: Features, image: ImageSource) -> list[Any]:
    """Return the polygons that overlap an image, in its pixels."""
    import shapely

    polygons = in_pixels(features, image).geometries
    # After a conversion, rounding may let a polygon cross itself; clip_by_rect accepts this.
    return [p for p in polygons if shapely.clip_by_rect(p, 0, 0, *image.shape[1::-1]).area]
