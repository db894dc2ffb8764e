"""The size of the pixels of images, from their files and from their places on the map."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

METERS, MICROMETERS = 'm', '\N{MICRO SIGN}m'
GEOCENTRIC = 'EPSG:4978'  # x, y and z from the center of the Earth, in meters
# Up to this relative difference, lengths on the map count as lengths on the ground. UTM and most
# national grids stay within it, so that twice the size of a pixel is exactly two pixels.
TRUE_TO_SCALE = 0.01

# The units of OME and NGFF, in micrometers.
IN_MICROMETERS = dict(nm=1e-3, nanometer=1e-3, micrometer=1, mm=1e3, millimeter=1e3, cm=1e4)
IN_MICROMETERS |= dict(centimeter=1e4, m=1e6, meter=1e6) | {
    MICROMETERS: 1,
    '\N{GREEK SMALL LETTER MU}m': 1,
}


class PixelSize(NamedTuple):
    """The height and the width of a pixel, in a unit: meters on the ground, or micrometers."""

    height: float
    width: float
    unit: str

    def reduced(self, size: Sequence[int], reduced: Sequence[int]) -> 'PixelSize':
        """Return the pixel size of an image (H, W) after its reduction to another size."""
        rows, columns = (a / b for a, b in zip(size[:2], reduced[:2], strict=True))
        return PixelSize(self.height * rows, self.width * columns, self.unit)


def pixel_size_on_map(crs: Any, transform: Any, size: tuple[int, int]) -> PixelSize | None:
    """Return the size on the ground of the pixel at the center of an image (H, W), in meters.

    None for coordinates in degrees or an unknown unit. Where the scale of the map is true, to 1 %,
    this is the size on the map. For other bodies than the Earth, it is always the size on the map.
    """
    if crs is None or not crs.is_projected:
        return None
    _, meters = crs.linear_units_factor
    on_map = np.array([[transform.b, transform.e], [transform.a, transform.d]]) * meters
    sides = np.linalg.norm(on_map, axis=1)
    center = [size[1] / 2], [size[0] / 2]
    on_ground = [np.linalg.norm(v[0]) for v in _sides_on_ground(crs, transform, *center)]
    if not np.allclose(on_ground, sides, TRUE_TO_SCALE) and np.isfinite(on_ground).all():
        sides = on_ground
    return PixelSize(*map(float, sides), METERS)


def pixel_areas(georeference: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the areas (n,) of the pixels at places (n,) of an image.

    They are in square meters on the ground, on the ellipsoid, if the image has a reference system.
    Without one, they are in the unit of the coordinates, such as pixels of the full image. For
    other bodies than the Earth, they are square meters of the map, or 1 for degrees.
    """
    crs, transform = georeference.get('crs'), georeference.get('transform')
    if transform is None:
        return np.ones(len(x))
    if crs is None:
        return np.full(len(x), abs(transform.determinant))
    on_map = 1.0
    if crs.is_projected:
        on_map = abs(transform.determinant) * crs.linear_units_factor[1] ** 2
    areas = np.linalg.norm(np.cross(*_sides_on_ground(crs, transform, x, y)), axis=1)
    return np.where(np.isfinite(areas), areas, on_map)


def are_areas_in_meters(georeference: Mapping[str, Any], size: tuple[int, int]) -> bool:
    """Return whether :func:`pixel_areas` of an image (H, W) are square meters."""
    crs, transform = georeference.get('crs'), georeference.get('transform')
    if crs is None or crs.is_projected:
        return crs is not None
    return bool(np.isfinite(_sides_on_ground(crs, transform, [size[1] / 2], [size[0] / 2])).all())


def area_at_center(georeference: Mapping[str, Any], size: tuple[int, int]) -> float:
    """Return the area of the pixel at the center of an image (H, W); see :func:`pixel_areas`."""
    height, width = size
    return float(pixel_areas(georeference, np.array([width / 2]), np.array([height / 2]))[0])


def _sides_on_ground(
    crs: Any, transform: Any, x: Sequence[float], y: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors (n, 3) of the sides of pixels, down and right, in meters.

    They lead through the centers of the pixels. They are NaN at places that are not on the Earth.
    """
    from rasterio.warp import transform as convert

    ends = np.array([(0, -0.5), (0, 0.5), (-0.5, 0), (0.5, 0)])
    places = np.stack([x, y], axis=1)[:, None] + ends  # (n, 4, 2)
    east, north = (np.ravel(c) for c in transform * np.moveaxis(places, 2, 0))
    if crs.is_geographic:  # the border of a pixel may be beyond a pole
        north = north.clip(-90, 90)
    try:
        on_ground = np.array(convert(crs, GEOCENTRIC, east, north, np.zeros(len(east))))
    except Exception:  # rasterio and GDAL raise many kinds, also for other bodies
        on_ground = np.full((3, len(east)), np.nan)
    on_ground[:, ~np.isfinite(on_ground).all(axis=0)] = np.nan
    top, bottom, left, right = np.moveaxis(on_ground.reshape(3, -1, 4), 2, 0)
    return (bottom - top).T, (right - left).T


def pixel_size_of(height: Any, width: Any) -> PixelSize | None:
    """Return a size in micrometers from numbers or texts, or None if they are not positive."""
    try:
        size = PixelSize(float(height), float(width), MICROMETERS)
    except (TypeError, ValueError):
        return None
    return size if min(size[:2]) > 0 and max(size[:2]) < math.inf else None


def in_micrometers(length: Any, unit: str | None) -> float | None:
    """Return a length, a number or a text, in micrometers; None if it or its unit is not known."""
    factor = IN_MICROMETERS.get(unit)
    try:
        return None if factor is None else float(length) * factor
    except (TypeError, ValueError):
        return None


def to_full_size(
    size: Sequence[int], full_size: Sequence[int], corner: Sequence[float] = (0, 0)
) -> dict[str, Any]:
    """Return the transform from the pixels of a reduced image to the pixels of the full image.

    These are counted from a ``corner``, y and x.
    """
    from rasterio import Affine

    scale = Affine.scale(full_size[1] / size[1], full_size[0] / size[0])
    return dict(transform=Affine.translation(-corner[1], -corner[0]) * scale)
