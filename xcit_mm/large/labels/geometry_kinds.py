"""Geometries of files that shapely has no type for."""

import struct

from ...base.errors import UserError

# By their numbers in well-known binary (ISO 19125), without the digits of a third dimension.
CURVES = {8: 'CircularString', 9: 'CompoundCurve', 10: 'CurvePolygon', 11: 'MultiCurve'}
CURVES |= {12: 'MultiSurface', 13: 'Curve', 14: 'Surface'}
SURFACES = {15: 'PolyhedralSurface', 16: 'TIN', 17: 'Triangle'}


def kind_of(encoded: bytes) -> str:
    """Return the name of a curve or surface in well-known binary, or '' for another geometry."""
    (number,) = struct.unpack('<I' if encoded[:1] == b'\x01' else '>I', encoded[1:5])
    return (CURVES | SURFACES).get((number & 0xFFFF) % 1000, '')


def require_known_kind(kind: str, place: str) -> None:
    """Refuse curves and surfaces in three dimensions; ``place`` starts the sentence."""
    if kind in SURFACES.values():
        raise UserError(
            f'{place} is a {kind}, a surface in three dimensions, not a polygon: write its outline '
            'on the ground, for example with ogr2ogr -dim XY -nlt MULTIPOLYGON'
        )
    if kind in CURVES.values():
        raise UserError(
            f'{place} is a {kind}, which has curves: write it as polygons with '
            'ogr2ogr -nlt CONVERT_TO_LINEAR'
        )
