"""GeoTIFF files of labels and of values of classes, with the georeference of their image."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import SEEK_END
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ...base.errors import UserError, reason
from ...base.files import write_beside, write_whole
from ...base.geometry import Window, tiles, whole
from ...large.files.rasters import CACHE

BLOCK = 512  # pixels of the side of a block
WRITTEN_BYTES = 2**25  # of what is written at a time
ROOM = 2**16  # bytes that the disk needs to have free at the end
STORED = dict(compress='deflate', bigtiff='if_safer')
OF_COG = dict(blocksize=BLOCK, overviews='force_use_existing')
# How overviews are made from the pixels: labels cannot be averaged. GDAL's 'mode' writes the label
# 0 where pixels of 16 bits have no data.
NEAREST, AVERAGE = 'nearest', 'average'
# The columns of a table of classes, with GDAL's numbers of their type and usage.
INTEGER, TEXT = 0, 2
COLUMNS = {
    'Value': (INTEGER, 5),
    'Class': (TEXT, 2),
    'Red': (INTEGER, 6),
    'Green': (INTEGER, 7),
    'Blue': (INTEGER, 8),
}


def write_tiff(
    path: Path,
    values: np.ndarray,
    georeference: Mapping[str, Any],
    palette: Sequence[tuple[int, int, int]] = (),
    *,
    nodata: float | None = None,
    valid: Callable[[Window], np.ndarray] | None = None,
    names: Sequence[str] = (),
    classes: Sequence[str] = (),
    levels_by: str = NEAREST,
    cog: bool = False,
) -> None:
    """Write an array of integers or floats as a tiled GeoTIFF with overviews, window by window.

    The file is either complete or absent. GeoTIFF cannot hold the names of classes, and its keys
    cannot express some reference systems, such as a rotated pole. They are in ``path.aux.xml``,
    which GDAL reads together with the file.

    Args:
        path: The file.
        values: (H, W), or (bands, H, W).
        georeference: ``crs`` and ``transform``; either may be missing.
        palette: Colors of the values.
        nodata: The value of pixels without data, which may be NaN for floats.
        valid: Returns which pixels of a window have data, (h, w) bool, for a mask band. None: all.
        names: The descriptions of the bands.
        classes: The names of the values, for the table of values with their names and colors.
        levels_by: How overviews are made from the pixels, ``NEAREST`` or ``AVERAGE``.
        cog: Whether to write a cloud-optimized GeoTIFF, whose blocks hold all bands.

    Raises:
        UserError: If the file cannot be written.
    """
    import rasterio
    from rasterio.enums import Resampling
    from rasterio.errors import RasterioError
    from rasterio.shutil import copy

    bands = values if values.ndim == 3 else values[None]
    settings = dict(
        GDAL_CACHEMAX=CACHE,
        GDAL_PAM_ENABLED=False,  # everything is in the file itself
        GDAL_TIFF_INTERNAL_MASK=True,
        GDAL_TIFF_OVR_BLOCKSIZE=BLOCK,
    )
    try:
        with write_beside(path) as unfinished, warnings.catch_warnings(), rasterio.Env(**settings):
            warnings.simplefilter('ignore')  # about images without a georeference
            plain = unfinished.with_name('plain.tif') if cog else unfinished
            options = dict(georeference, nodata=nodata)
            _write_pixels(plain, bands, options, palette, valid, names)
            with rasterio.open(plain, 'r+') as tiff:
                tiff.build_overviews(_factors(tiff.shape), Resampling[levels_by])
            if cog:
                copy(plain, unfinished, driver='COG', **STORED, **OF_COG)
            _require_room(unfinished)
            with rasterio.open(unfinished) as tiff:
                is_held = tiff.crs == georeference.get('crs')
    except (OSError, RasterioError, rasterio._err.CPLE_BaseError) as error:
        raise UserError(
            f'{path} cannot be written ({reason(error)}): make room on its disk'
        ) from None
    _write_sidecar(path, None if is_held else georeference['crs'].to_wkt(), classes, palette)


def _write_pixels(
    path: Path,
    bands: np.ndarray,
    options: Mapping[str, Any],
    palette: Sequence[tuple[int, int, int]],
    valid: Callable[[Window], np.ndarray] | None,
    names: Sequence[str],
) -> None:
    import rasterio

    count, height, width = bands.shape
    options = dict(options, **STORED, height=height, width=width, count=count)
    options |= dict(tiled=True, blockxsize=BLOCK, blockysize=BLOCK, interleave='band')
    options |= dict(dtype=bands.dtype.name, photometric='minisblack')
    if bands.dtype.kind == 'f':
        options |= dict(predictor=3)  # halves the size of files of floats
    with rasterio.open(path, 'w', 'GTiff', **options) as tiff:
        if len(palette) and bands.dtype == np.uint8:
            tiff.write_colormap(1, {i: tuple(color) for i, color in enumerate(palette)})
        for band, name in enumerate(names, 1):
            tiff.set_band_description(band, name)
        for window in _windows(bands):
            tiff.write(bands[(slice(None), *window)], window=_in_file(window))
            if valid is not None:
                tiff.write_mask(valid(window), window=_in_file(window))


def _require_room(path: Path) -> None:
    """Raise the error of GDAL's last write, which GDAL hides: a disk that was full still is."""
    with path.open('r+b') as file:
        size = file.seek(0, SEEK_END)
        file.write(bytes(ROOM))
        file.truncate(size)


def _write_sidecar(
    path: Path, crs: str | None, classes: Sequence[str], palette: Sequence[tuple[int, int, int]]
) -> None:
    """Write the reference system in WKT and the table of classes to ``path.aux.xml``.

    The file of an earlier image is removed, because GDAL prefers its reference system.
    """
    sidecar, root = path.with_name(f'{path.name}.aux.xml'), ElementTree.Element('PAMDataset')
    if crs is not None:
        ElementTree.SubElement(root, 'SRS').text = crs
    if classes:
        band = ElementTree.SubElement(root, 'PAMRasterBand', band='1')
        table = ElementTree.SubElement(band, 'GDALRasterAttributeTable', tableType='thematic')
        for index, (name, (kind, usage)) in enumerate(COLUMNS.items()):
            column = ElementTree.SubElement(table, 'FieldDefn', index=str(index))
            for tag, value in dict(Name=name, Type=kind, Usage=usage).items():
                ElementTree.SubElement(column, tag).text = str(value)
        for label, (name, color) in enumerate(zip(classes, palette, strict=True)):
            row = ElementTree.SubElement(table, 'Row', index=str(label))
            for value in (label, name, *color):
                ElementTree.SubElement(row, 'F').text = str(value)
    if len(root) == 0:
        sidecar.unlink(missing_ok=True)
        return
    ElementTree.indent(root)
    with write_whole(sidecar) as file:
        file.write(ElementTree.tostring(root, 'utf-8'))


def _windows(bands: np.ndarray) -> list[Window]:
    """Return windows of whole blocks that cover the image, each of a few megabytes."""
    count, *size = bands.shape
    columns = WRITTEN_BYTES // (count * bands.itemsize * BLOCK) // BLOCK * BLOCK
    return list(tiles(whole(size), (BLOCK, max(BLOCK, columns))))


def _in_file(window: Window) -> Any:
    from rasterio.windows import Window as RasterWindow

    return RasterWindow.from_slices(*window)


def _factors(size: Sequence[int]) -> list[int]:
    """Return the factors of overviews, until the shorter side has less than a block."""
    factors = [1]
    while min(size) // factors[-1] >= BLOCK:
        factors.append(2 * factors[-1])
    return factors[1:]
