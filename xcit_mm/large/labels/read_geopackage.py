"""The layer of a GeoPackage, which is an SQLite database.

A view, a trigger or a generated column of a database is a program, and GDAL would run it. Here,
SQLite only reads the stored values of a table.
"""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from ...base.errors import UserError, one_line, reason
from .geometry_kinds import kind_of, require_known_kind

# Where SQLite keeps the number of the application, and those of GeoPackage 1.0, 1.1 and later.
APPLICATION, GEOPACKAGES = slice(68, 72), (b'GP10', b'GP11', b'GPKG')
# Systems that GeoPackage does not define: a plane, for example of pixels, and the Earth.
CARTESIAN, GEOGRAPHIC = -1, 0
MAGIC, EXTENDED = b'GP', 32
ENVELOPES = {0: 0, 1: 32, 2: 48, 3: 48, 4: 64}  # bytes, by their code in a geometry
# Kinds of shapes in WKB, numbered from 1. With z or m, the numbers are larger by thousands.
KINDS = 'Point', 'LineString', 'Polygon', 'MultiPoint', 'MultiLineString', 'MultiPolygon'
POINT, POLYGON, MULTI = 1, 3, 3
ORDERS = {0: '>I', 1: '<I'}  # byte orders of a number
READ = 'gpkg_geometry_columns', 'gpkg_spatial_ref_sys'


class Layer(NamedTuple):
    """The features of a layer: shapes in two dimensions, properties, and the name of the system."""

    geometries: list[Any]
    properties: list[dict[str, Any]]
    crs: str | None


def read_layer(path: Path, data: bytes) -> Layer:
    """Read a GeoPackage with one layer, whose content is ``data``.

    Raises:
        UserError: If the file is damaged or is not a GeoPackage with one layer, if the layer is not
            a table, or if a feature has no geometry with finite coordinates.
    """
    if data[APPLICATION] not in GEOPACKAGES:
        raise UserError(f'{path} is an SQLite database, but not a GeoPackage: convert it')
    log = path.with_name(f'{path.name}-wal')
    if log.is_file() and log.stat().st_size:
        raise UserError(
            f'{path} has changes in {log.name} that are not in the file yet: close the program '
            'that edits it'
        )
    # An immutable database is opened without the files next to it, and without a lock.
    address = f'{path.resolve().as_uri()}?mode=ro&immutable=1'
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda text: text.decode(errors='replace')
            database.set_authorizer(_only_values)
            return _layer(path, database, len(data))
    except sqlite3.Error as error:
        raise UserError(f'{path} cannot be read as a GeoPackage ({reason(error)})') from None


def _only_values(action: int, name: str, value: str, _: str, source: str | None) -> int:
    """Allow a statement to read columns, but neither views nor functions nor recursion."""
    is_plain = action == sqlite3.SQLITE_READ and source is None
    is_plain |= action == sqlite3.SQLITE_SELECT
    is_plain |= action == sqlite3.SQLITE_PRAGMA and name == 'table_info'
    return sqlite3.SQLITE_OK if is_plain else sqlite3.SQLITE_DENY


def _layer(path: Path, database: sqlite3.Connection, size: int) -> Layer:
    for table in READ:
        _require_table(path, database, table)
    layers = 'SELECT table_name, column_name, srs_id FROM gpkg_geometry_columns'
    layers = [*_rows(path, database.execute(layers), size)]
    if len(layers) != 1:
        names = one_line(', '.join(str(name) for name, *_ in layers)) or 'none'
        raise UserError(
            f'{path} has {len(layers)} layers with geometries ({names}), but one is needed: copy a '
            f'layer with ogr2ogr ONE.gpkg {path.name} LAYER'
        )
    table, geometry, system = layers[0]
    _require_table(path, database, table)
    # Without the primary key. The list also leaves generated columns out.
    columns = database.execute(f'PRAGMA table_info({_quoted(table)})')
    columns = [name for _, name, _, _, _, key in columns if not key and name != geometry]
    chosen = ', '.join(map(_quoted, [geometry, *columns]))
    geometries, properties = [], []
    rows = database.execute(f'SELECT {chosen} FROM {_quoted(table)} NOT INDEXED')
    for number, (encoded, *values) in enumerate(_rows(path, rows, size), 1):
        geometries.append(_decoded(path, number, encoded))
        properties.append(dict(zip(columns, values, strict=True)))
    return Layer(geometries, properties, _system(path, database, system, size))


def _require_table(path: Path, database: sqlite3.Connection, name: str) -> None:
    found = database.execute('SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE', (name,))
    kinds = [str(sql)[:13].upper() for (sql,) in found.fetchmany(2)]
    if kinds != ['CREATE TABLE ']:
        raise UserError(
            f'{path}: {one_line(str(name))} is not a table of the database, and a view can compute '
            'without end: copy it with ogr2ogr -f GPKG if you trust it'
        )


def _rows(path: Path, found: sqlite3.Cursor, size: int) -> Iterator[tuple]:
    """Yield rows, and refuse more data than a file of ``size`` bytes can hold.

    In a damaged database, several rows may share a page; all rows may share a default value.
    """
    for row in found:
        size -= 1 + sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if size < 0:
            raise UserError(f'{path} is damaged: it has more values than bytes; copy it again')
        yield row


def _system(path: Path, database: sqlite3.Connection, number: int, size: int) -> str | None:
    """Return the code or the definition of a reference system."""
    if number == CARTESIAN:
        return None
    if number == GEOGRAPHIC:
        return 'EPSG:4326'
    found = database.execute('SELECT * FROM gpkg_spatial_ref_sys WHERE srs_id = ?', (number,))
    names = [name.lower() for name, *_ in found.description]
    for row in _rows(path, found, size):
        known = dict(zip(names, row, strict=True))
        if str(known['organization']).upper() == 'EPSG':
            return f'EPSG:{known["organization_coordsys_id"]}'
        newer = known.get('definition_12_063')  # WKT 2
        return str(known['definition'] if newer in (None, 'undefined') else newer)
    raise UserError(f'{path} does not define its reference system {number}: write it with ogr2ogr')


def _decoded(path: Path, number: int, encoded: Any) -> Any:
    try:
        if encoded[:2] != MAGIC or encoded[3] & EXTENDED:
            raise ValueError('it is not in the binary format of GeoPackage')
        encoded = encoded[8 + ENVELOPES[encoded[3] >> 1 & 7] :]
        require_known_kind(kind_of(encoded), f'{path}: feature {number}')
        _require_flat(encoded)
        geometry = shapely.force_2d(shapely.from_wkb(encoded))
        if not np.isfinite(shapely.get_coordinates(geometry)).all():
            raise ValueError('a coordinate is not finite')
        return geometry
    except (TypeError, ValueError, LookupError, struct.error, shapely.GEOSException) as error:
        cause = str(error) if isinstance(error, ValueError) else 'it is missing or damaged'
    raise UserError(
        f'{path}: feature {number} has no geometry with finite coordinates ({one_line(cause)}): '
        'correct or remove it'
    )


def _require_flat(wkb: bytes) -> None:
    """Refuse curves, surfaces in space, and collections, which GEOS reads recursively."""
    kind, place = _kind(wkb, 0)
    if kind <= POLYGON:
        return
    (count,), place = struct.unpack_from(ORDERS[wkb[0]], wkb, place), place + 4
    for _ in range(count):
        part, start = _kind(wkb, place)
        if part != kind - MULTI:
            raise ValueError(f'it is a {KINDS[kind - 1]} of other shapes')
        place = _end(wkb, place, start)


def _kind(wkb: bytes, place: int) -> tuple[int, int]:
    """Return the kind of the shape that begins at a place, and where its content begins."""
    (kind,) = struct.unpack_from(ORDERS[wkb[place]], wkb, place + 1)
    if not (kind < 4000 and 0 < kind % 1000 <= len(KINDS)):
        raise ValueError(
            'it is a collection, a curve or a surface in space, which ogr2ogr -nlt '
            'CONVERT_TO_LINEAR -explodecollections converts'
        )
    return kind % 1000, place + 5


def _end(wkb: bytes, place: int, start: int) -> int:
    """Return the end of a point, a line or a polygon that begins at a place."""
    order = ORDERS[wkb[place]]
    kind, of_point = struct.unpack_from(order, wkb, place + 1)[0], 16
    of_point += 8 * (kind // 1000 in (1, 2)) + 16 * (kind // 1000 == 3)  # with z, m, or both
    if kind % 1000 == POINT:
        return start + of_point
    rings = 1
    if kind % 1000 == POLYGON:
        (rings,), start = struct.unpack_from(order, wkb, start), start + 4
    for _ in range(rings):
        start += 4 + of_point * struct.unpack_from(order, wkb, start)[0]
    return start


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
