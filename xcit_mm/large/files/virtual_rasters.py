"""GDAL's virtual rasters (.vrt): mosaics of files, and bands from several files.

A virtual raster can name any file or address and any computation. GDAL never opens one here: its
text is parsed, and only what gdalbuildvrt writes for files on this machine is accepted.
"""

import math
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from ...base.errors import UserError, one_line
from ...base.files import open_regular, parse_xml, read_regular
from ...base.geometry import Window
from ...data.tiff.places import place_in
from ...data.tiff.tiff_bands import color_order
from .image_source import MAX_CHANNELS
from .mosaics import Mosaic, Tile
from .rasters import RASTERS

VIRTUAL = ('.vrt',)
MAX_TEXT = 2**26  # bytes, about 20,000 files of three bands
MAX_SIDE = 2**31 - 1  # pixels, as in GDAL
TYPES = dict(Byte='u1', Int8='i1', UInt16='u2', Int16='i2', UInt32='u4', Int32='i4')
TYPES |= dict(Float32='f4', Float64='f8')
SOURCES = 'SimpleSource', 'ComplexSource'
# Elements that change no pixel. Overviews may name any file, and are never opened.
IGNORED = {
    'Metadata',
    'BlockXSize',
    'BlockYSize',
    'OverviewList',
    'GCPList',
    'MaskBand',
    'Overview',
}
IGNORED |= {'Description', 'ColorInterp', 'NoDataValue', 'HideNoDataValue', 'UnitType', 'Offset'}
IGNORED |= {'Scale', 'Histograms', 'CategoryNames', 'SRS', 'GeoTransform', 'VRTRasterBand'}
OF_SOURCE = {'SourceFilename', 'SourceBand', 'SourceProperties', 'SrcRect', 'DstRect', 'NODATA'}
OF_SOURCE |= {'UseMaskBand'}
ELSEWHERE = '/vsi', '\\\\', '//'  # GDAL's addresses, and shares of other machines on Windows
UNSCALED = 1e-6  # relative difference of the sides of two rectangles
REMEDY = 'write a GeoTIFF with gdal_translate if you trust it'


def open_virtual(
    path: Path, channels: int | None = None, nodata: float | None = None, level: int = 0
) -> Mosaic:
    """Open a virtual raster.

    Bands of transparency are left out if a number of ``channels`` is given: a pixel has data where
    a file has data. A file that is not at whole pixels is placed at the nearest ones.

    Raises:
        UserError: If the text is damaged, or does more than place parts of raster files on this
            machine, at their own resolution.
    """
    try:
        root = parse_xml(read_regular(path, MAX_TEXT))
        sides = root.get('rasterYSize'), root.get('rasterXSize')
        if root.tag != 'VRTDataset' or None in sides:
            raise ValueError('it is no VRTDataset with a size')
        size = tuple(map(_integer, sides))
        if not all(0 < n <= MAX_SIDE for n in size):
            raise ValueError(f'it has {size[1]}x{size[0]} pixels')
        bands = _bands(root, channels is not None)
        tiles = _tiles(path, bands, size)
        place = place_in(root)
        values = [_number(band.findtext('NoDataValue')) for band in bands]
    except (ParseError, ValueError) as error:
        raise UserError(
            f'{path} cannot be read as a mosaic ({one_line(str(error))}): {REMEDY}'
        ) from None
    own_nodata = None if values.count(None) == len(values) else tuple(values)
    files = [path, *dict.fromkeys(tile.path for tile in tiles)]
    return Mosaic(str(path), size, tiles, files, place, channels, nodata, own_nodata, level)


def _bands(root: Element, are_colors: bool) -> list[Element]:
    """Return the bands, or those of an RGB image, after a check of all that they contain."""
    _require_known(root, IGNORED)
    bands = root.findall('VRTRasterBand')
    if root.get('subClass'):
        raise ValueError(f'it is a {root.get("subClass")}')
    if not 0 < len(bands) <= MAX_CHANNELS:
        raise ValueError(f'it has {len(bands)} bands')
    kinds = [str(band.findtext('ColorInterp')).lower() for band in bands]
    if are_colors:
        bands = [bands[number - 1] for number in color_order(kinds)[0]]
    types = {band.get('dataType', 'Byte') for band in bands}
    if len(types) > 1 or not types <= {*TYPES}:
        raise ValueError(f'its bands have the types {", ".join(sorted(types))}')
    for band in bands:
        if band.get('subClass', 'VRTSourcedRasterBand') != 'VRTSourcedRasterBand':
            raise ValueError(f'it has a {band.get("subClass")}')
        _require_known(band, IGNORED | {*SOURCES})
    return bands


def _tiles(path: Path, bands: list[Element], size: tuple[int, int]) -> list[Tile]:
    """Return the parts of files, of which the last one in the text is the uppermost."""
    tiles: dict[tuple, dict[int, int]] = {}
    order = []
    for number, band in enumerate(bands):
        for source in (element for element in band if element.tag in SOURCES):
            place, in_file = _placed(path, source, size)
            if place is not None:
                order.append(place)
                tiles.setdefault(place, {})[number] = in_file
    if not tiles:
        raise ValueError('it names no file')
    unique = [*dict.fromkeys(reversed(order))]
    return [
        Tile(
            file,
            Window(slice(*rows), slice(*columns)),
            corner,
            tuple(tiles[file, rows, columns, corner, nodata].get(i) for i in range(len(bands))),
            nodata,
        )
        for file, rows, columns, corner, nodata in unique
    ]


def _placed(path: Path, source: Element, size: tuple[int, int]) -> tuple[tuple | None, int]:
    """Return the file of a source, its place and its no-data value, and the band of the file.

    The first is None if the place is outside the image.
    """
    _require_known(source, OF_SOURCE)
    file = _file(path, source)
    band = _integer(source.findtext('SourceBand') or '1')
    if not 0 < band <= MAX_CHANNELS:
        raise ValueError(f'it names the band {band}')
    spans, corner = [], []
    rectangles = [source.find(name) for name in ('SrcRect', 'DstRect')]
    if None in rectangles:
        raise ValueError(f'it does not say which part of {file} it shows')
    for axis, limit in zip('yx', size, strict=True):
        (first, side), (start, shown) = (
            (_number(r.get(f'{axis}Off')), _number(r.get(f'{axis}Size'))) for r in rectangles
        )
        if None in (first, side, start, shown) or abs(side - shown) > UNSCALED * max(side, 1):
            raise ValueError(
                f'it scales {file}, which gdalwarp -tr or gdalbuildvrt -resolution avoids'
            )
        begin, end = math.floor(start + 0.5), math.floor(start + shown + 0.5)
        begin, end, offset = max(0, begin), min(limit, end), math.floor(start - first + 0.5)
        spans.append((begin, end))
        corner.append(begin - offset)
    if any(begin >= end for begin, end in spans):
        return None, band - 1
    return (file, *spans, tuple(corner), _number(source.findtext('NODATA'))), band - 1


def _file(path: Path, source: Element) -> Path:
    """Return the raster file on this machine that a source names."""
    element = source.find('SourceFilename')
    name = '' if element is None else (element.text or '').strip()
    folder = path.resolve().parent if element is not None and _is_relative(element) else Path()
    file = folder / name
    if file.suffix.lower() not in RASTERS or name.startswith(ELSEWHERE) or '\0' in name:
        raise ValueError(f'it names {one_line(name)!r}, which is no TIFF or JPEG 2000 file')
    try:
        open_regular(file).close()
    except OSError as error:
        raise ValueError(f'it names {file}: {error.strerror}') from None
    return file


def _is_relative(element: Element) -> bool:
    return element.get('relativeToVRT') == '1'


def _require_known(element: Element, known: set[str]) -> None:
    for child in element:
        if child.tag not in known:
            raise ValueError(f'it has a {child.tag}')


def _integer(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f'{one_line(text)!r} is not a whole number')
    return int(text)


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
