"""Vector features: geometries with properties, from GeoJSON and GeoPackage files."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.geometry import shape

from ...base.errors import UserError, looked_in, one_line, reason
from ...base.file_headers import SQLITE
from ...base.files import read_regular
from ...data.tiff.reference_systems import crs_of
from ..files.crs_names import crs_name
from ..files.image_source import ImageSource
from ..files.pixel_sizes import area_at_center
from .geometry_kinds import CURVES, SURFACES, require_known_kind
from .read_geopackage import read_layer
from .reprojection import across_180_degrees, period_of, repeated_within, reprojected

MAX_BYTES = 2**31 - 1  # of a file of features, which is read as a whole
# GeoJSON's names for degrees of longitude and latitude.
DEGREES = {'urn:ogc:def:crs:OGC:1.3:CRS84': 'EPSG:4326', 'urn:ogc:def:crs:OGC::CRS84': 'EPSG:4326'}
CRS_MEMBERS = 'type', 'properties'
GEOMETRIES = (
    *('Point', 'MultiPoint', 'LineString', 'MultiLineString'),
    *('Polygon', 'MultiPolygon', 'GeometryCollection'),
)
GRID = 33  # places a side, in and around an image, from which its surroundings are found


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


def not_in_image(image: ImageSource, features: Features, *guesses: Features) -> UserError:
    """Return what is wrong with a file that has no feature in its image.

    ``guesses`` are the same features in other reference systems that were tried as well.
    """
    place = 'for which the file names no system'
    if features.crs is not None:
        place = f'in {one_line(features.crs)}'
    cause = 'may belong to another reference system or to another image'
    for read in (features, *guesses):
        swapped = shapely.transform(_objects(read.geometries), lambda points: points[:, ::-1])
        with suppress(UserError):
            placed = in_pixels(replace(read, geometries=[*swapped]), image).geometries
            if shapely.intersects(placed, shapely.box(0, 0, *image.shape[1::-1])).any():
                cause = 'lie in it if they are exchanged: write x (longitude) before y (latitude)'
    return UserError(
        f'{features.path}: none of its {len(features.geometries)} polygons overlaps {image.name}: '
        f'the coordinates, {place}, {cause}'
    )


def _objects(geometries: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(geometries), object)
    array[:] = geometries
    return array


def _geojson(path: Path, data: bytes) -> Features:
    try:
        content = json.loads(data.decode('utf-8-sig'))
        features = _listed(content)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f'{path} is neither a GeoJSON file nor a GeoPackage ({reason(error)})'
        ) from None
    crs, geometries, properties = _named_crs(path, content, features), [], []
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
    if kind in (*GEOMETRIES, *CURVES.values(), *SURFACES.values()):
        return [dict(geometry=content)]
    raise ValueError('it has no list of features')


def _named_crs(path: Path, content: dict, features: Sequence[Any]) -> str | None:
    """Return the reference system that the members ``crs`` name, as GeoJSON 2008 has them.

    PostGIS writes them into the geometries.
    """
    objects = [content, *features, *(f['geometry'] for f in features if _has(f, 'geometry'))]
    members = [part['crs'] for part in objects if _has(part, 'crs')]
    if any(member != members[0] for member in members):
        raise UserError(f'{path} has several reference systems: write a file for each of them')
    if not members:
        return None
    kind, about = (members[0].get(key) if _has(members[0], key) else None for key in CRS_MEMBERS)
    about = about if isinstance(about, dict) else {}
    name = about.get('name', about.get('urn'))
    if kind == 'EPSG' and name is None and 'code' in about:
        name = f'EPSG:{about["code"]}'
    if not isinstance(name, str):
        text = one_line(json.dumps(members[0]))
        raise UserError(
            f'{path}: its member crs, {text}, has no name or code of a reference system, and links '
            'are not followed: write the file with ogr2ogr -t_srs SYSTEM -lco RFC7946=NO'
        )
    return DEGREES.get(name, name)


def _has(content: Any, key: str) -> bool:
    return isinstance(content, dict) and content.get(key) is not None


def _geometry(path: Path, number: int, feature: Any) -> Any:
    try:
        if feature['geometry'] is None:
            raise ValueError('it is null')
        require_known_kind(feature['geometry']['type'], f'{path}: feature {number}')
        geometry = shapely.force_2d(shape(feature['geometry']))
        if not np.isfinite(shapely.get_coordinates(geometry)).all():
            raise ValueError('a coordinate is not finite')
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        cause = reason(error)
    except shapely.errors.ShapelyError as error:
        cause = reason(error)
    else:
        return geometry
    raise UserError(
        f'{path}: feature {number} has no geometry with numbers as coordinates ({cause}): correct '
        'or remove it'
    )
