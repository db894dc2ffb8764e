"""Vector features: geometries with properties, from GeoJSON and GeoPackage files."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.geometry import mapping, shape

from ..environment import require
from ..errors import UserError, looked_in, one_line, reason
from ..file_headers import SQLITE
from ..files import read_regular
from .read_geopackage import read_layer
from .reference_systems import crs_of

MAX_BYTES = 2**31 - 1  # of a file of features, which is read as a whole
# GeoJSON's names for degrees of longitude and latitude.
DEGREES = {'urn:ogc:def:crs:OGC:1.3:CRS84': 'EPSG:4326', 'urn:ogc:def:crs:OGC::CRS84': 'EPSG:4326'}
GEOMETRIES = (
    *('Point', 'MultiPoint', 'LineString', 'MultiLineString'),
    *('Polygon', 'MultiPolygon', 'GeometryCollection'),
)


@dataclass(frozen=True)
class Features:
    """The n features of a file.

    Attributes:
        path: The file.
        geometries: n geometries of shapely in two dimensions, with finite coordinates, as they are
            in the file: they may be invalid or empty.
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
        UserError: If the file is missing or cannot be read, if a feature has no geometry or
            coordinates that are not finite numbers, or if a GeoPackage has several layers.
    """
    path = Path(path).expanduser()
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise UserError(f'{path} does not exist{looked_in(path)}') from None
    except OSError as error:
        raise UserError(f'{path} cannot be read ({reason(error)})') from None
    if data.startswith(SQLITE):
        return Features(path, *read_layer(path, data))
    return _geojson(path, data)


def in_crs(features: Features, crs: Any) -> Features:
    """Return the features in the coordinates of another reference system.

    ``crs`` is a text or a CRS of rasterio, or None for an image without one. Features whose file
    names no system stay as they are.

    Raises:
        UserError: If a system is unknown, if the image has none but the file does, or if a geometry
            is outside the area for which the other system is defined.
    """
    if features.crs is None:
        return features
    require('rasterio')
    from rasterio.crs import CRS
    from rasterio.warp import transform_geom

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
    described = [mapping(geometry) for geometry in features.geometries]
    try:
        moved = [shape(geometry) for geometry in transform_geom(source, target, described)]
        is_inside = all(np.isfinite(shapely.get_coordinates(moved)).all(axis=1))
        cause = 'a coordinate is infinite'
    except Exception as error:  # rasterio and GDAL raise many kinds
        is_inside, cause = False, reason(error)
    if not is_inside:
        raise UserError(
            f'{features.path}: its coordinates cannot be converted from {name} to '
            f'{target.to_string()} ({cause}): they may belong to another reference system'
        )
    return replace(features, geometries=moved, crs=target.to_string())


def _geojson(path: Path, data: bytes) -> Features:
    try:
        content = json.loads(data.decode('utf-8-sig'))
        features, crs = _listed(content), _named_crs(content)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f'{path} is neither a GeoJSON file nor a GeoPackage ({reason(error)})'
        ) from None
    geometries, properties = [], []
    for number, feature in enumerate(features, 1):
        geometries.append(_geometry(path, number, feature))
        known = feature.get('properties')
        properties.append(known if isinstance(known, dict) else {})
    return Features(path, geometries, properties, crs)


def _listed(content: Any) -> list:
    members = content if isinstance(content, dict) else {}
    if isinstance(members.get('features'), list):
        return members['features']
    kind = members.get('type')
    if kind == 'Feature':
        return [content]
    if kind in GEOMETRIES:
        return [dict(geometry=content)]
    raise ValueError('it has no list of features')


def _named_crs(content: dict) -> str | None:
    member = content.get('crs')
    if member is None:
        return None
    try:
        name = member['properties']['name']
    except (TypeError, LookupError):
        name = None
    if not isinstance(name, str):
        raise ValueError('its member crs has no name')
    return DEGREES.get(name, name)


def _geometry(path: Path, number: int, feature: Any) -> Any:
    try:
        if feature['geometry'] is None:
            raise ValueError('it is null')
        geometry = shapely.force_2d(shape(feature['geometry']))
        if not np.isfinite(shapely.get_coordinates(geometry)).all():
            raise ValueError('a coordinate is not finite')
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        cause = reason(error)
    except shapely.GEOSException as error:
        cause = reason(error)
    else:
        return geometry
    raise UserError(
        f'{path}: feature {number} has no geometry with numbers as coordinates ({cause}): correct '
        'or remove it'
    )
