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
from .image_source import ReadOptions
from .mosaics import Mosaic, Tile
from .rasters import RASTERS

VIRTUAL = ('.vrt',)
MAX_TEXT = 2**26  # bytes, about 20,000 files of three bands
SOURCES = {'SimpleSource', 'ComplexSource'}
# Elements that change no pixel. Overviews may name any file, and are never opened.
IGNORED = {'Metadata', 'BlockXSize', 'BlockYSize', 'OverviewList', 'GCPList', 'MaskBand'}
IGNORED |= {'Overview', 'Description', 'ColorInterp', 'NoDataValue', 'HideNoDataValue', 'UnitType'}
IGNORED |= {'Offset', 'Scale', 'Histograms', 'CategoryNames', 'SRS', 'GeoTransform'}
OF_SOURCE = {'SourceFilename', 'SourceBand', 'SourceProperties', 'SrcRect', 'DstRect', 'NODATA'}
OF_SOURCE |= {'UseMaskBand'}
ELSEWHERE = '/vsi', '\\\\', '//'  # GDAL's addresses, and shares of other machines on Windows
UNSCALED = 1e-6  # relative difference of the sides of two rectangles


def open_virtual(path: Path, options: ReadOptions) -> Mosaic:
    """Open a virtual raster.

    Bands of transparency are left out if a number of ``channels`` is given: a pixel has data where
    a file has data. A file that is not at whole pixels is placed at the nearest ones.

    Raises:
        UserError: If the text is damaged, or does more than place parts of raster files on this
            machine, at their own resolution.
    """
    channels, _, nodata, level, _ = options
    try:
        root = parse_xml(read_regular(path, MAX_TEXT))
        size = int(root.attrib['rasterYSize']), int(root.attrib['rasterXSize'])
        _require_plain(root, IGNORED | {'VRTRasterBand'})
        bands = root.findall('VRTRasterBand')
        if channels is not None:
            kinds = [band.findtext('ColorInterp', '').lower() for band in bands]
            bands = [bands[number - 1] for number in color_order(kinds)[0]]
        read = bands[:channels]
        for band in read:
            _require_plain(band, IGNORED | SOURCES, 'VRTSourcedRasterBand')
        tiles, place = _tiles(path, read, size), place_in(root)
        values = [_number(band.findtext('NoDataValue')) for band in bands]
    except (ParseError, LookupError, AttributeError, ValueError, OSError) as error:
        raise UserError(
            f'{path} cannot be read as a mosaic ({one_line(str(error))}): write a GeoTIFF with '
            'gdal_translate if you trust it'
        ) from None
    own_nodata = None if values.count(None) == len(values) else tuple(values)
    files = [path, *dict.fromkeys(tile.path for tile in tiles)]
    shape = *size, len(bands)
    return Mosaic(str(path), shape, tiles, files, place, nodata, own_nodata, level)


def _tiles(path: Path, bands: list[Element], size: tuple[int, int]) -> list[Tile]:
    """Return the parts of files, of which the last one in the text is the uppermost."""
    tiles: dict[tuple, dict[int, int]] = {}
    for number, band in enumerate(bands):
        for source in (element for element in band if element.tag in SOURCES):
            part, in_file = _placed(path, source, size)
            of_part = tiles.pop(part, {})  # the last place in the text counts
            tiles[part] = of_part | {number: in_file}
    tiles.pop(None, None)
    if not tiles:
        raise ValueError('it names no file')
    return [
        Tile(file, window, corner, tuple(map(of_bands.get, range(len(bands)))), nodata)
        for (file, *spans, corner, nodata), of_bands in reversed(tiles.items())
        for window in [Window(*(slice(*span) for span in spans))]
    ]


def _placed(path: Path, source: Element, size: tuple[int, int]) -> tuple[tuple | None, int]:
    """Return the file of a source, its place and its no-data value, and the band of the file.

    The first is None if the place is outside the image.
    """
    _require_plain(source, OF_SOURCE)
    file, band = _file(path, source), int(source.findtext('SourceBand', '1')) - 1
    rectangles = [source.find(name).attrib for name in ('SrcRect', 'DstRect')]
    spans, corner = [], []
    for axis, limit in zip('yx', size, strict=True):
        (first, side), (start, shown) = (
            (float(r[f'{axis}Off']), float(r[f'{axis}Size'])) for r in rectangles
        )
        if abs(side - shown) > UNSCALED * max(side, 1):
            raise ValueError(
                f'it scales {file}, which gdalwarp -tr or gdalbuildvrt -resolution avoids'
            )
        begin, end = math.floor(start + 0.5), math.floor(start + shown + 0.5)
        begin, end, offset = max(0, begin), min(limit, end), math.floor(start - first + 0.5)
        spans.append((begin, end))
        corner.append(begin - offset)
    if any(begin >= end for begin, end in spans):
        return None, band
    return (file, *spans, tuple(corner), _number(source.findtext('NODATA'))), band


def _file(path: Path, source: Element) -> Path:
    """Return the raster file on this machine that a source names."""
    element = source.find('SourceFilename')
    name = (element.text or '').strip()
    folder = path.resolve().parent if element.get('relativeToVRT') == '1' else Path()
    file = folder / name
    if file.suffix.lower() not in RASTERS or name.startswith(ELSEWHERE):
        raise ValueError(f'it names {one_line(name)!r}, which is no TIFF or JPEG 2000 file')
    open_regular(file).close()
    return file


def _require_plain(element: Element, parts: set[str], kind: str | None = None) -> None:
    """Refuse an element of another kind, or with other parts, which may name files or code."""
    names = {child.tag for child in element} - parts
    if (named := element.get('subClass', kind)) != kind:
        names.add(str(named))
    if names:
        raise ValueError(f'it has a {min(names)}')


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
