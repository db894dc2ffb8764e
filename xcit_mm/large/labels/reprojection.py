"""Polygons in the coordinates of another reference system, also across the 180th meridian.

The x coordinates of a system that shows the Earth as a band, such as degrees or Web Mercator,
repeat after its *period*: 180.1 and -179.9 degrees are the same meridian.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import shapely

from .outlines import from_arrays, to_arrays

POLYGONS = shapely.GeometryType.POLYGON, shapely.GeometryType.MULTIPOLYGON
EARTH = 6_371_000  # its radius in meters
# Between corners that are sqrt(STRAIGHT * p) meters apart, a line that is straight in one system
# bends by a tenth of a pixel of p meters at most in another one, except near the poles.
STRAIGHT = 1e6
MAX_ADDED = 2**20  # corners for one file, because its coordinates may be huge
FULL_TURN = 1 - 1e-6  # of a period: sides of this length are the border of a map of the Earth


def period_of(crs: Any) -> float | None:
    """Return the distance after which the x coordinates of a system repeat, or None."""
    from rasterio.warp import transform

    if crs.is_geographic:
        return 2 * math.pi / crs.units_factor[1]
    try:
        x, y = np.array(transform('EPSG:4326', crs, [0, 1, 90, 91], [0, 0, 40, 40]))
    except Exception:  # rasterio and GDAL raise many kinds, also for other bodies than the Earth
        return None
    steps, is_level = x[1::2] - x[::2], np.allclose(y[1::2], y[::2])
    return 360 * steps[0] if is_level and steps[0] > 0 and np.ptp(steps) < 1e-9 * steps[0] else None


def across_180_degrees(geometries: np.ndarray, crs: Any) -> np.ndarray:
    """Let the sides of polygons from 179 to -179 degrees cross the 180th meridian.

    Read literally, such a side leads around the Earth. RFC 7946 asks for two polygons instead.
    """
    period = period_of(crs)
    if period is None:
        return geometries

    def change(corners: np.ndarray, rings: np.ndarray) -> np.ndarray:
        turns = _turns(corners[:, 0], rings, period, FULL_TURN * period)
        is_closed = turns[rings[1:] - 1] == turns[rings[:-1]]
        turns *= np.repeat(is_closed, np.diff(rings))  # the others surround a pole
        return corners - np.stack([turns * period, np.zeros(len(turns))], axis=1)

    return _changed(geometries, change)


def reprojected(
    geometries: np.ndarray, source: Any, target: Any, pixel: float, near: np.ndarray | None = None
) -> np.ndarray:
    """Return polygons in another system; other geometries are returned as they are.

    Sides that bend in the other system get more corners. Polygons across the 180th meridian are
    continuous: their coordinates may be outside the usual range.

    Args:
        geometries: (n,) geometries of shapely.
        source: The CRS of rasterio of their coordinates.
        target: The CRS of rasterio to convert them to.
        pixel: The side of a pixel in meters, to which the result is accurate.
        near: Places (n, 2) in the target system, in and around all that matters. Polygons are cut
            to the box of these places in their own system, because the target system may not be
            defined far away. If nothing is left of a polygon, it becomes a corner of this box.

    Raises:
        ValueError: If a place is not in the other system, or if a polygon surrounds a pole although
            the coordinates of the system repeat.
    """
    from rasterio.warp import transform

    periods = period_of(source), period_of(target)
    unit = source.units_factor[1] * (EARTH if source.is_geographic else 1)  # in meters

    def change(corners: np.ndarray, rings: np.ndarray) -> np.ndarray:
        moved = np.stack(transform(source, target, *corners.T.copy()), axis=1)
        if not np.isfinite(moved).all():
            raise ValueError('a coordinate is infinite')
        if periods[1] is not None:
            usual = 0 if periods[0] is None else corners[:, 0] * (periods[1] / periods[0])
            turns = _turns(moved[:, 0] - usual, rings, periods[1])
            if (turns[rings[1:] - 1] != turns[rings[:-1]]).any():
                raise ValueError('a polygon surrounds a pole')
            moved[:, 0] -= turns * periods[1]
        return moved

    geometries = across_180_degrees(geometries, source)
    if near is not None:
        geometries = _cut(geometries, periods[0], _surroundings(near, target, source))
    side = math.sqrt(STRAIGHT * pixel) / unit
    side = max(side, shapely.length(geometries).sum() / MAX_ADDED)
    return _changed(shapely.segmentize(geometries, side), change)


def repeated_within(geometries: np.ndarray, period: float, west: float, east: float) -> np.ndarray:
    """Return polygons where they appear between two x coordinates.

    Coordinates that differ by a period are the same place. Polygons that do not appear there at all
    stay as they are.
    """
    left, _, right, _ = shapely.bounds(geometries).T
    is_elsewhere = np.isin(shapely.get_type_id(geometries), POLYGONS)
    is_elsewhere &= ((left < west) | (right > east)) & (right - left <= 2 * period)
    moved = geometries.copy()
    for i in np.flatnonzero(is_elsewhere):
        copies = []
        for part in shapely.get_parts(geometries[i]):
            left, _, right, _ = part.bounds
            first = math.ceil((west - right) / period)
            for turn in range(first, math.floor((east - left) / period) + 1):
                shift = np.array([turn * period, 0])
                copies.append(shapely.transform(part, lambda points, shift=shift: points + shift))
        if copies:
            moved[i] = copies[0] if len(copies) == 1 else shapely.MultiPolygon(copies)
    return moved


def _surroundings(near: np.ndarray, target: Any, source: Any) -> np.ndarray:
    """Return places (n, 2) in the system of the polygons, not finite where it is not defined."""
    from rasterio.warp import transform

    try:
        return np.stack(transform(target, source, *near.T.copy()), axis=1)
    except Exception:  # rasterio and GDAL raise many kinds
        return np.full(near.shape, np.nan)


def _cut(geometries: np.ndarray, period: float | None, places: np.ndarray) -> np.ndarray:
    """Return geometries whose valid polygons are cut to the box of places (n, 2)."""
    if not np.isfinite(places).all():
        return geometries
    x, y = places.T
    if period is not None:
        middle = x[len(x) // 2]
        x = middle + (x - middle + period / 2) % period - period / 2
        if np.ptp(x) > period / 4:  # it may surround a pole
            return geometries
    west, south, east, north = x.min(), y.min(), x.max(), y.max()
    area = shapely.box(west, south, east, north)
    corner = shapely.box(west, south, west + (east - west) / 100, south + (north - south) / 100)
    are_cut = np.isin(shapely.get_type_id(geometries), POLYGONS) & shapely.is_valid(geometries)
    are_cut &= ~shapely.is_empty(geometries) & ~shapely.covered_by(geometries, area)
    moved, cut = geometries, geometries.copy()
    if period is not None:
        moved = repeated_within(geometries, period, west, east)
    for i in np.flatnonzero(are_cut):
        parts = shapely.get_parts(shapely.intersection(shapely.get_parts(moved[i]), area))
        whole = shapely.union_all(parts[np.isin(shapely.get_type_id(parts), POLYGONS)])
        cut[i] = corner if whole.is_empty else whole
    return cut


def _changed(
    geometries: np.ndarray, change: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return geometries whose polygons have other corners.

    ``change`` gets the corners (m, 2) of all rings and the offsets of the rings in them.
    """
    are_polygons = np.isin(shapely.get_type_id(geometries), POLYGONS)
    are_polygons &= ~shapely.is_empty(geometries)
    if not are_polygons.any():
        return geometries
    wholes = geometries[are_polygons]
    parts, places = shapely.get_parts(wholes, return_index=True)
    corners, rings, offsets = to_arrays(parts)
    parts = from_arrays(change(corners, rings), rings, offsets)
    is_single = shapely.get_type_id(wholes) == shapely.GeometryType.POLYGON
    moved = geometries.copy()
    moved[are_polygons] = np.where(
        is_single,
        parts[np.searchsorted(places, np.arange(len(wholes)))],
        shapely.multipolygons(parts, indices=places),
    )
    return moved


def _turns(x: np.ndarray, rings: np.ndarray, period: float, most: float = math.inf) -> np.ndarray:
    """Return how many periods to subtract from each corner (m,) so that rings take short ways.

    A short way from corner to corner is at most half a period long. Steps of more than ``most``
    stay as they are.
    """
    steps = np.diff(x, prepend=x[:1])
    steps[rings[:-1]] = 0
    turns = np.round(steps / period)
    turns[np.abs(steps) > most] = 0
    turns = np.cumsum(turns)
    return turns - np.repeat(turns[rings[:-1]], np.diff(rings))
