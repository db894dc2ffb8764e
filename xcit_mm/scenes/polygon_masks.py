"""Masks of the pixels in polygons."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .geometry import Window
from .image_source import ImageSource
from .masks import Mask
from .read_features import Features, in_crs, read_features

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


def polygons_of(path: str | Path, image: ImageSource, scale: Sequence[float]) -> Polygons:
    """Return the polygons of a GeoJSON file or GeoPackage in an image.

    They are converted to the reference system of the image. The coordinates of a file that names no
    system are map coordinates of the image or, if they lie outside, degrees. For an image without a
    reference system, they are pixels of the full image, and ``scale`` is the number of these pixels
    in a pixel of the image, in y and x.

    Raises:
        UserError: If the file cannot be used, or has no polygon in the image.
    """
    features = read_features(path)
    _require_polygons(features)
    crs, transform = (image.georeference.get(name) for name in ('crs', 'transform'))
    guessed = None
    matrix = 1 / scale[1], 0, 0, 1 / scale[0], 0, 0
    if transform is not None:
        a, b, c, d, e, f, *_ = ~transform
        matrix = a, b, d, e, c, f
    if crs is not None and features.crs is None:
        guessed = replace(features, crs=WGS84)
    inside = _placed(in_crs(features, crs), matrix, image.shape[:2])
    if not inside and guessed is not None:
        with suppress(UserError):  # the coordinates are no degrees
            inside = _placed(in_crs(guessed, crs), matrix, image.shape[:2])
    if inside:
        return Polygons(inside, image.shape[:2])
    raise UserError(
        f'{path} has no polygon in {image.name}: its coordinates may belong to another reference '
        'system or to another image'
    )


def _require_polygons(features: Features) -> None:
    import shapely

    kinds = {geometry.geom_type for geometry in features.geometries}
    if not kinds or not kinds <= {'Polygon', 'MultiPolygon'}:
        found = ', '.join(sorted(kinds)) or 'no features'
        raise UserError(f'{features.path} has {found}, but a region needs polygons')
    for number, polygon in enumerate(features.geometries, 1):
        if not polygon.is_valid:
            raise UserError(
                f'{features.path}: the polygon of feature {number} is invalid '
                f'({shapely.is_valid_reason(polygon)}): repair it, for example with ogr2ogr '
                '-makevalid'
            )


def _placed(features: Features, matrix: Sequence[float], size: tuple[int, int]) -> list[Any]:
    """Return the polygons that are in an image (H, W), in its pixels."""
    import shapely
    from shapely.affinity import affine_transform

    polygons = [affine_transform(polygon, matrix) for polygon in features.geometries]
    # In other coordinates, a polygon may cross itself in the last digits, which a cut allows.
    return [p for p in polygons if shapely.clip_by_rect(p, 0, 0, *size[::-1]).area]
