"""The layer of a GeoPackage, which is an SQLite database.

A view, a trigger or a generated column of a database is a program, and GDAL would run it. Here,
SQLite only reads the stored values of a table.
"""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from ...base.errors import UserError, one_line

# Systems that GeoPackage does not define: a plane, for example of pixels, and the Earth.
CARTESIAN, GEOGRAPHIC = -1, 0
MAGIC = b'GP'
ENVELOPES = {0: 0, 1: 32, 2: 48, 3: 48, 4: 64}  # bytes, by their code in a geometry
POLYGON, MULTIPOLYGON = 3, 6  # in well-known binary; with z or m, the numbers are larger by 1000s


def read_layer(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], str | None]:
    """Return the encoded geometries and the properties of a layer, and the name of its system.

    Raises:
        sqlite3.Error: If the file is damaged, or if the layer is not a table.
        UserError: If there are several layers, or changes that are not in the file yet.
    """
    log = path.with_name(f'{path.name}-wal')
    if log.is_file() and log.stat().st_size:
        raise UserError(
            f'{path} has changes in {log.name} that are not in the file yet: close the program '
            'that edits it'
        )
    # An immutable database is opened without the files next to it, and without a lock.
    address = f'{path.resolve().as_uri()}?mode=ro&immutable=1'
    with closing(sqlite3.connect(address, uri=True)) as database:
        database.text_factory = lambda text: text.decode(errors='replace')
        database.set_authorizer(_only_values)
        layers = 'SELECT table_name, column_name, srs_id FROM gpkg_geometry_columns'
        layers = database.execute(layers).fetchall()
        if len(layers) != 1:
            raise UserError(
                f'{path} has {len(layers)} layers with geometries '
                f'({one_line(", ".join(name for name, *_ in layers))}), but one is needed: copy a '
                f'layer with ogr2ogr ONE.gpkg {path.name} LAYER'
            )
        ((table, geometry, system),) = layers
        # Without the primary key. The list also leaves generated columns out.
        columns = database.execute(f'PRAGMA table_info({_quoted(table)})')
        columns = [name for _, name, _, _, _, key in columns if not key and name != geometry]
        chosen = ', '.join(map(_quoted, [geometry, *columns]))
        rows = database.execute(f'SELECT {chosen} FROM {_quoted(table)} NOT INDEXED')
        features = [(first, dict(zip(columns, others, strict=True))) for first, *others in rows]
        return features, _system(database, system)


def _only_values(action: int, name: str, value: str, _: str, source: str | None) -> int:
    """Allow a statement to read columns, but neither views nor functions nor recursion."""
    is_plain = action == sqlite3.SQLITE_READ and source is None
    is_plain |= action == sqlite3.SQLITE_SELECT
    is_plain |= action == sqlite3.SQLITE_PRAGMA and name == 'table_info'
    return sqlite3.SQLITE_OK if is_plain else sqlite3.SQLITE_DENY


def _system(database: sqlite3.Connection, number: int) -> str | None:
    """Return the code or the definition of a reference system."""
    if number == CARTESIAN:
        return None
    if number == GEOGRAPHIC:
        return 'EPSG:4326'
    database.row_factory = sqlite3.Row
    rows = database.execute('SELECT * FROM gpkg_spatial_ref_sys WHERE srs_id = ?', (number,))
    system = dict(rows.fetchone())
    if system['organization'].upper() == 'EPSG':
        return f'EPSG:{system["organization_coordsys_id"]}'
    newer = system.get('definition_12_063')  # WKT 2
    return system['definition'] if newer in (None, 'undefined') else newer


def decoded(encoded: bytes) -> shapely.Polygon | shapely.MultiPolygon:
    """Decode a polygon; GEOS reads nested geometries recursively, and overflows the stack.

    Raises:
        ValueError: If it is another geometry.
    """
    if encoded[:2] != MAGIC:
        raise ValueError('it is not in the binary format of GeoPackage')
    wkb = encoded[8 + ENVELOPES[encoded[3] >> 1 & 7] :]
    kind, count = struct.unpack_from('<II' if wkb[0] else '>II', wkb, 1)
    if kind % 1000 != MULTIPOLYGON:
        return _polygon(wkb, 0)[0]
    parts, place = [], 9
    for _ in range(count):
        part, place = _polygon(wkb, place)
        parts.append(part)
    return shapely.MultiPolygon(parts)


def _polygon(wkb: bytes, place: int) -> tuple[shapely.Polygon, int]:
    """Return the polygon that begins at a place, and where it ends."""
    order = '<' if wkb[place] else '>'
    kind, count = struct.unpack_from(f'{order}II', wkb, place + 1)
    if kind % 1000 != POLYGON:
        raise ValueError(f'it has the type {kind} instead of a Polygon or MultiPolygon')
    numbers = 2 + (kind // 1000 in (1, 2)) + 2 * (kind // 1000 == 3)  # with z, m, or both
    rings, place = [], place + 9
    for _ in range(count):
        (length,) = struct.unpack_from(f'{order}I', wkb, place)
        corners = np.frombuffer(wkb, f'{order}f8', length * numbers, place + 4)
        rings.append(corners.reshape(length, numbers)[:, :2].astype(float))
        place += 4 + corners.nbytes
    return shapely.Polygon(rings[0], rings[1:]), place


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
