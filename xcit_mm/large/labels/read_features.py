"""Polygons with properties, from GeoJSON and GeoPackage files."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.geometry import shape

from ...base.errors import UserError, one_line, reason
from ...base.files import read_regular
from ...data.tiff.file_headers import SQLITE
from ...data.tiff.reference_systems import crs_of
from ..files.crs_names import crs_name
from ..files.image_source import ImageSource, errors_of
from ..files.pixel_sizes import area_at_center
from .read_geopackage import decoded, read_layer
from .reprojection import across_180_degrees, period_of, repeated_within, reprojected

MAX_BYTES = 2**31 - 1  # of a file of features, which is read as a whole
# GeoJSON's names for degrees of longitude and latitude.
DEGREES = {'urn:ogc:def:crs:OGC:1.3:CRS84': 'EPSG:4326', 'urn:ogc:def:crs:OGC::CRS84': 'EPSG:4326'}
POLYGONS = 'Polygon', 'MultiPolygon'
GRID = 33  # places a side, in and around an image, from which its surroundings are found


@dataclass(frozen=True)
class Features:
    """The n features of a file.

    Attributes:
        path: The file.
        geometries: n Polygons and MultiPolygons of shapely in two dimensions, with finite
            coordinates, as they are in the file: they may be invalid.
        properties: n dicts.
        crs: The reference system that the file names, or None. The coordinates of a GeoJSON file
            without one belong to its image: map coordinates, or pixels.
    """

    path: Path
    geometries: list[Any]
    properties: list[dict[str, Any]]
    crs: str | None


def read_features(path: str | Path) -> Features:
    """Read a GeoPackage with one layer, or a GeoJSON file.

    A file that starts like an SQLite database is read as a GeoPackage, and any other file as
    GeoJSON: a FeatureCollection, a Feature or a geometry, with the member ``crs`` of GDAL if the
    coordinates belong to a named reference system.

    Raises:
        UserError: If the file is missing or cannot be read, if a feature is not a polygon with
            finite coordinates, or if a GeoPackage has several layers.
    """
    path, polygons = Path(path).expanduser(), []
    with errors_of(path):
        data, decode = read_regular(path, MAX_BYTES), decoded
        if data.startswith(SQLITE):
            features, crs = read_layer(path)
        else:
            features, crs = _geojson(path, json.loads(data.decode('utf-8-sig')))
            decode = shape
    for number, (geometry, _) in enumerate(features, 1):
        try:
            polygon = shapely.force_2d(decode(geometry))
            is_finite = np.isfinite(shapely.get_coordinates(polygon)).all()
            if polygon.geom_type not in POLYGONS or polygon.is_empty or not is_finite:
                raise ValueError(f'it is {one_line(polygon.wkt)}')
        except Exception as error:  # shapely raises many kinds
            raise UserError(
                f'{path}: feature {number} is not a Polygon or MultiPolygon with numbers as '
                f'coordinates ({reason(error)}): correct or remove it'
            ) from None
        polygons.append(polygon)
    return Features(path, polygons, [properties for _, properties in features], crs)


def in_pixels(features: Features, image: ImageSource) -> Features:
    """Return the features of an image with a georeference in its pixels; others as they are.

    Raises:
        UserError: See :func:`in_crs`.
    """
    crs, transform = (image.georeference.get(name) for name in ('crs', 'transform'))
    if transform is None:
        return in_crs(features, crs)
    pixel = math.sqrt(area_at_center(image.georeference, image.shape[:2]))
    height, width = image.shape[:2]
    columns, rows = np.meshgrid(*(np.linspace(-n, 2 * n, GRID) for n in (width, height)))
    near = np.stack(transform * (columns.ravel(), rows.ravel()), axis=1)
    geometries = _objects(in_crs(features, crs, pixel, near).geometries)
    if crs is not None and (period := period_of(crs)) is not None:
        geometries = across_180_degrees(geometries, crs)
        x, _ = transform * (np.array([0, width, width, 0]), np.array([0, 0, height, height]))
        geometries = repeated_within(geometries, period, x.min(), x.max())
    a, b, c, d, e, f, *_ = ~transform
    geometries = shapely.transform(
        geometries, lambda x, y: (a * x + b * y + c, d * x + e * y + f), interleaved=False
    )
    return replace(features, geometries=[*geometries])


def in_crs(
    features: Features, crs: Any, pixel: float = math.inf, near: np.ndarray | None = None
) -> Features:
    """Return the features in the coordinates of another reference system.

    ``crs`` is a text or a CRS of rasterio, or None for an image without one. Features whose file
    names no system stay as they are. Sides may bend by less than a ``pixel``, in meters. For
    ``near``, see :func:`.reprojected`.

    Raises:
        UserError: If a system is unknown, if the image has none but the file does, or if a geometry
            is outside the area for which the other system is defined.
    """
    if features.crs is None:
        return features
    from rasterio.crs import CRS

    name = one_line(repr(features.crs))
    if crs is None:
        raise UserError(
            f'{features.path} has the reference system {name}, but the image has none: remove crs '
            'from the file, or add the system to the image with gdal_edit.py -a_srs'
        )
    try:
        source, target = crs_of(features.crs), CRS.from_user_input(crs)
    except ValueError as error:
        raise UserError(
            f'{features.path}: the reference system {name} cannot be used ({error}): write '
            'the file with ogr2ogr -t_srs SYSTEM -lco RFC7946=NO'
        ) from None
    if source == target:
        return features
    try:
        moved = reprojected(_objects(features.geometries), source, target, pixel, near)
    except Exception as error:  # rasterio and GDAL raise many kinds
        raise UserError(
            f'{features.path}: its coordinates cannot be converted from {name} to '
            f'{crs_name(target)} ({reason(error)}): they may belong to another reference system, '
            'or be latitudes before longitudes'
        ) from None
    return replace(features, geometries=[*moved])


def not_in_image(image: ImageSource, features: Features) -> UserError:
    """Return what is wrong with a file that has no feature in its image."""
    place = f'in {one_line(features.crs)}' if features.crs else 'for which the file names no system'
    return UserError(
        f'{features.path}: none of its {len(features.geometries)} polygons overlaps {image.name}: '
        f'the coordinates, {place}, may belong to another reference system or to another image, or '
        'be latitudes before longitudes'
    )


def _objects(geometries: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(geometries), object)
    array[:] = geometries
    return array


def _geojson(path: Path, content: Any) -> tuple[list[tuple[Any, dict]], str | None]:
    """Return the geometries and properties of GeoJSON, and the name of its reference system."""
    if 'features' not in content:
        content = dict(features=[content if 'geometry' in content else dict(geometry=content)])
    features = content['features']
    geometries = [feature['geometry'] for feature in features]
    names = {*_named_crs(content, *features, *geometries)}
    if len(names) > 1:
        raise UserError(f'{path} has several reference systems: write a file for each of them')
    properties = [feature.get('properties') or {} for feature in features]
    crs = names.pop() if names else None
    return [*zip(geometries, properties, strict=True)], DEGREES.get(crs, crs)


def _named_crs(*parts: Any) -> Iterator[str]:
    """Yield the reference systems that parts of a file name, as GeoJSON 2008 has them.

    PostGIS writes them into the geometries. Links are not followed.
    """
    for part in parts:
        if part and (member := part.get('crs')):
            about = member['properties']
            yield str(about.get('name') or about.get('urn') or f'EPSG:{about["code"]}')
