"""The reference systems that files name.

If the name of a system looks like an address, a file or a chain of computations with grids, GDAL
and PROJ request, open or compute it, and they wait for a server forever. Here, the name of a system
must be a code, or WKT that does not need a file.
"""

import re
from typing import Any

from ...base.errors import one_line

MAX_TEXT = 2**16  # characters; PROJ itself writes at most a few thousand
CODE = re.compile(
    r'(?:urn:(?:x-)?ogc:def:crs:|https?://(?:www\.)?opengis\.net/def/crs/)?'
    r'(EPSG|ESRI|OGC|CRS|IGNF|NKG|IAU_\d+)(?:[:/][\w.]*)?[:/](\w+)',
    re.IGNORECASE,
)
# A horizontal and a vertical system.
COMPOUND = re.compile(r'EPSG:\d+\+\d+|urn:ogc:def:crs(?:,crs:EPSG:[\d.]*:\d+){2}')
# A node of WKT with up to two texts, or another text. Quotes are doubled in texts.
TEXT = r'"((?:[^"]|"")*)"'
NODE = re.compile(rf'\b(\w+)\s*[\[(]\s*(?:{TEXT}(?:\s*,\s*{TEXT})?)?|{TEXT}')
BETWEEN = re.compile(r'[\w\s.,+\-\])]*')  # between nodes and texts: numbers, directions and so on
NODES = re.compile(
    r'PROJCS|GEOGCS|GEOCCS|COMPD_CS|VERT_CS|VERTCS|LOCAL_CS|DATUM|VERT_DATUM|LOCAL_DATUM|SPHEROID|'
    r'PRIMEM|UNIT|LINUNIT|AXIS|PROJECTION|PARAMETER|AUTHORITY|TOWGS84|EXTENSION|PROJCRS|'
    r'PROJECTEDCRS|GEOGCRS|GEOGRAPHICCRS|GEODCRS|GEODETICCRS|COMPOUNDCRS|VERTCRS|VERTICALCRS|'
    r'ENGCRS|ENGINEERINGCRS|BOUNDCRS|BASEPROJCRS|BASEGEOGCRS|BASEGEODCRS|BASEVERTCRS|BASEENGCRS|'
    r'SOURCECRS|TARGETCRS|ABRIDGEDTRANSFORMATION|VERSION|OPERATIONACCURACY|GEODETICDATUM|TRF|'
    r'VDATUM|VERTICALDATUM|VRF|EDATUM|ENGINEERINGDATUM|ENSEMBLE|MEMBER|ENSEMBLEACCURACY|ELLIPSOID|'
    r'PRIMEMERIDIAN|ANCHOR|ANCHOREPOCH|DYNAMIC|FRAMEEPOCH|MODEL|CONVERSION|DERIVINGCONVERSION|'
    r'METHOD|CS|ORDER|MERIDIAN|ANGLEUNIT|LENGTHUNIT|SCALEUNIT|TIMEUNIT|PARAMETRICUNIT|ID|USAGE|'
    r'SCOPE|AREA|BBOX|VERTICALEXTENT|TIMEEXTENT|REMARK',
)
AUTHORITY, AUTHORITY_CODE = re.compile(r'[\w .-]*'), re.compile(r'[\w.-]*')
ROTATED_POLE = 'PROJ ob_tran o_proj=longlat'  # the only method whose name is a command of PROJ
NO_GRID = '@null'
# EPSG:3857 and older libraries add a text for PROJ. It is accepted without grids and steps.
PROJ4 = re.compile(
    r'(?:\s*\+?(?:nadgrids=@null|(?:proj|a|b|f|rf|R|R_C|ellps|datum|towgs84|pm|axis|units|vunits|'
    r'to_meter|lat_\w+|lon_\w+|lonc|k|k_0|x_0|y_0|h|h_0|alpha|gamma|azi|tilt|sweep|zone|south|'
    r'no_uoff|no_off|no_rot|shape|over|type|wktext|no_defs|o_proj|o_lat_p|o_lon_p)'
    r'(?:=[-+\w.,]*)?)(?!\S))*\s*'
)


def crs_of(text: str) -> Any:
    """Return the CRS of rasterio that a file names: by a code, such as EPSG:32632, or in WKT.

    Raises:
        ValueError: If the text is neither, if the system is unknown, or if it needs a file.
    """
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    text = text.strip()
    code = CODE.fullmatch(text)
    try:
        if code is not None:
            return CRS.from_string(f'{code[1].upper()}:{code[2]}')
        if COMPOUND.fullmatch(text):
            return CRS.from_string(text)
        require_plain(text)
        return CRS.from_wkt(text)
    except CRSError as error:
        raise ValueError(f'PROJ does not know the reference system: {error}') from None


def require_plain(text: str) -> None:
    """Refuse WKT that makes PROJ open a file or an address, and texts that are not WKT.

    Raises:
        ValueError: If the text is not plain.
    """
    if not (len(text) <= MAX_TEXT and NODE.match(text)):
        raise ValueError('the reference system is neither a code, such as EPSG:32632, nor WKT')
    for node in NODE.finditer(text):
        name, first, second = (node[1] or 'UNIT').upper(), node[2] or '', node[3] or ''
        is_plain = NODES.fullmatch(name)
        if name in ('AUTHORITY', 'ID'):
            is_plain = AUTHORITY.fullmatch(first) and AUTHORITY_CODE.fullmatch(second)
        elif name in ('METHOD', 'PROJECTION'):
            is_plain = first == ROTATED_POLE or not first.upper().startswith('PROJ')
        elif name in ('EXTENSION', 'PARAMETERFILE'):
            is_plain = second == NO_GRID or (first == 'PROJ4' and PROJ4.fullmatch(second))
        if not is_plain:
            raise ValueError(
                f'the WKT of the reference system has {one_line(node[0])}, which may '
                'name a file, an address or a computation'
            )
    if not BETWEEN.fullmatch(NODE.sub('', text)):
        raise ValueError('the WKT of the reference system has unusual characters')
