"""Several image files that make up one image."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import UserError
from ...base.files import open_regular
from ...base.geometry import Window, overlap, shifted
from ...base.processes import shortened
from ...data.tiff.places import Place
from .crs_names import crs_name
from .image_source import ReadOptions, SourceWithGaps, errors_of, require_level, state_of_file
from .no_data import NoData, has_data, of_bands, representable
from .rasters import Raster

MAX_OPEN = 32  # files at a time
OFF_GRID = 0.05  # the fraction of a pixel by which the grids of two tiles may differ


class Tile(NamedTuple):
    """A part of a file, and its place in a mosaic.

    Attributes:
        path: The file.
        window: The place in the mosaic.
        corner: The row and the column of the file that are at the corner of ``window``.
        bands: For each band of the mosaic, the number of the band of the file from 0, or None.
        nodata: The value of pixels without data. Default: the value in the file.
        is_stored: Whether ``bands`` are the bands as they are stored in the file.
    """

    path: Path
    window: Window
    corner: tuple[int, int]
    bands: tuple[int | None, ...]
    nodata: float | None = None
    is_stored: bool = True


class Mosaic(SourceWithGaps):
    """An image that consists of tiles. Each pixel is read from the first tile with data there.

    Pixels without such a tile have no data. The levels are those that all tiles have, if the tiles
    begin at whole pixels of them.

    Args:
        name: The name of the image in messages.
        shape: (H, W, bands) of the full image.
        tiles: The tiles, the uppermost first, with the bands that are read.
        files: All files that belong to the image.
        place: The place of the full image on the map.
        nodata: The value of pixels without data, instead of the values in all files.
        own_nodata: The values of bands without data, if the mosaic has some besides its tiles.
        level: The number of the level.

    Raises:
        UserError: If a tile cannot be opened, if its values have another type than the first
            tile's, or if there is no such level.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, int, int],
        tiles: Sequence[Tile],
        files: Sequence[Path],
        place: Place,
        nodata: float | None = None,
        own_nodata: NoData = None,
        level: int = 0,
    ) -> None:
        self._files, self._opened, self._lock = tuple(files), OrderedDict(), Lock()
        self._named_nodata, levels_of_tiles, row_limits = nodata, [], []
        first = self._open(tiles[0], 0)
        for tile in tiles:
            source = self._open(tile, 0)
            _require_same_values(first, source)
            levels_of_tiles.append(_levels(tile, source))
            row_limits += [] if source.max_rows is None else [source.max_rows]
        factors = sorted(set.intersection(*map(set, levels_of_tiles)))
        levels = [tuple(-(-n // factor) for n in shape[:2]) for factor in factors]
        require_level(name, level, levels)
        factor, channels = factors[level], len(tiles[0].bands)
        self._tiles = [
            (_reduced(tile, factor), of_tile[factor])
            for tile, of_tile in zip(tiles, levels_of_tiles, strict=True)
        ]
        shape = *levels[level], shape[2]
        super().__init__(name, None, shape, first.dtype, channels, nodata)
        self.has_gaps, self.max_value = True, first.max_value
        self.max_rows = min(row_limits, default=None)
        if nodata is None:
            self.nodata = own_nodata
        self._use_level(level, levels, place)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | dict(_opened=OrderedDict(), _lock=None, _last=None)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def valid_box(self) -> Window:
        spans = []
        for axis, size in enumerate(self.shape[:2]):
            ends = [tile.window[axis] for tile, _ in self._tiles]
            start, stop = min(s.start for s in ends), max(s.stop for s in ends)
            spans.append(slice(max(0, start), min(size, stop)))
        return Window(*spans)

    def _file_state(self) -> list:
        states = [state_of_file(path) for path in self._files]
        return [shortened(hashlib.sha256(repr(states).encode()))]

    def _read_both(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels of a window, and which of them have data."""
        empty = [
            value if value is not None and representable(value, self.dtype) else 0
            for value in of_bands(self.nodata, self.channels)
        ]
        pixels = np.empty((*window.size, self.channels), self.dtype)
        pixels[...] = np.array(empty).astype(self.dtype)
        is_covered = np.zeros(pixels.shape, bool)
        for tile, level in self._tiles:
            part = Window(*(overlap(a, b) for a, b in zip(tile.window, window, strict=True)))
            bands = [i for i, band in enumerate(tile.bands) if band is not None]
            place = tuple(part.within(window))
            if 0 in part.size or not bands or is_covered[place][..., bands].all():
                continue
            in_file = part.within(tile.window)
            in_file = Window(*map(shifted, in_file, tile.corner))
            source = self._open(tile, level)
            values, valid = source.read(in_file), source.valid(in_file)
            valid = np.ones(part.size, bool) if valid is None else valid
            for band in bands:
                is_shown = valid & ~is_covered[place][..., band]
                np.copyto(pixels[place][..., band], values[..., tile.bands[band]], where=is_shown)
                is_covered[place][..., band] |= is_shown
        return pixels, is_covered.any(axis=2) & has_data(pixels, self.nodata)

    def _open(self, tile: Tile, level: int) -> Raster:
        """Return the open file of a tile; the files that were used last stay open."""
        nodata = tile.nodata if self._named_nodata is None else self._named_nodata
        channels = 1 + max(band for band in tile.bands if band is not None)
        key = tile.path, channels, nodata, level
        with self._lock:
            if key not in self._opened:
                options = ReadOptions(channels, False, nodata, level, tile.is_stored)
                self._opened[key] = Raster(tile.path, options)
                if len(self._opened) > MAX_OPEN:
                    self._opened.popitem(last=False)
            self._opened.move_to_end(key)
            return self._opened[key]


def open_mosaic(paths: Sequence[Path], options: ReadOptions) -> Mosaic:
    """Open files on one map as one image. Where they overlap, the first one with data is read.

    Raises:
        UserError: If a file cannot be opened, or if two tiles differ in the reference system, the
            size or the grid of their pixels, or the type or the number of their bands.
    """
    channels, _, nodata, level, _ = options
    headers = [_header(path, channels, nodata) for path in paths]
    (_, _, count), crs, transform = headers[0]
    corners = [_corner(paths[0], headers[0], *tile) for tile in zip(paths, headers, strict=True)]
    top, left = (min(values) for values in zip(*corners, strict=True))
    tiles = [
        Tile(
            path,
            Window(
                slice(row - top, row - top + height), slice(column - left, column - left + width)
            ),
            (0, 0),
            tuple(range(count))[:channels],
            is_stored=channels is None,
        )
        for path, ((height, width, _), *_), (row, column) in zip(
            paths, headers, corners, strict=True
        )
    ]
    height, width = (max(tile.window[axis].stop for tile in tiles) for axis in (0, 1))
    place = Place(crs, transform * type(transform).translation(left, top))
    name = str(paths[0])
    if len(paths) > 1:
        name += f' and {len(paths) - 1} other tile{"s" if len(paths) > 2 else ""}'
    return Mosaic(name, (height, width, count), tiles, paths, place, nodata, level=level)


class _Header(NamedTuple):
    """What remains of a tile after its file is closed: (H, W, bands) and its place."""

    shape: tuple[int, int, int]
    crs: Any
    transform: Any


def _header(path: Path, channels: int | None, nodata: float | None) -> _Header:
    with errors_of(path):
        open_regular(path).close()
        source = Raster(path, ReadOptions(channels, nodata=nodata))
    if source.georeference.get('crs') is None:
        raise UserError(
            f'{path} has no place on the map, but a tile of a mosaic needs one: add it with '
            'gdal_edit.py -a_srs -a_ullr, or with gdalwarp if it has ground control points'
        )
    return _Header(source.shape, **source.georeference)


def _corner(first: Path, grid: _Header, path: Path, tile: _Header) -> tuple[int, int]:
    """Return the row and the column of a tile on the grid of pixels of the first tile.

    Raises:
        UserError: If it has another grid or another number of bands.
    """
    place = ~grid.transform * tile.transform  # from pixels of the tile to pixels of the first one
    height, width, count = tile.shape
    # How far the last pixels are from where they would be with pixels of the same size.
    drift = [(place.a - 1) * width, place.b * height, place.d * width, (place.e - 1) * height]
    drift += [n - round(n) for n in (place.c, place.f)]
    is_same = tile.crs == grid.crs and count == grid.shape[2]
    if not is_same or max(map(abs, drift)) > OFF_GRID:
        kinds = (
            f'{crs_name(t.crs)} from {t.transform.c:.10g}, {t.transform.f:.10g} in pixels of '
            f'{t.transform.a:g}x{t.transform.e:g} with {t.shape[2]} bands'
            for t in (grid, tile)
        )
        raise UserError(
            f'{first} and {path} do not fit together: {" and ".join(kinds)}; gdalwarp -t_srs -tr '
            '-tap aligns the pixels, and gdal_translate -b chooses bands'
        )
    return round(place.f), round(place.c)


def _require_same_values(first: Raster, other: Raster) -> None:
    kinds = [(source.dtype, source.max_value) for source in (first, other)]
    if kinds[0] != kinds[1]:
        one, two = (f'{dtype}' + (f' up to {most}' if most else '') for dtype, most in kinds)
        raise UserError(
            f'{first.name} and {other.name} do not fit together: their values are {one} and {two}; '
            'convert one of them with gdal_translate -ot'
        )


def _levels(tile: Tile, source: Raster) -> dict[int, int]:
    """Return the levels of a file at which its tile begins at a whole pixel, by their factor."""
    levels = {}
    for level, size in enumerate(source.levels):
        factor = max(1, round(source.shape[0] / size[0]), round(source.shape[1] / size[1]))
        starts = *tile.corner, *(span.start for span in tile.window)
        fits = all(start % factor == 0 for start in starts)
        fits &= tuple(-(-n // factor) for n in source.shape[:2]) == tuple(size)
        for start, n, end in zip(tile.corner, tile.window.size, source.shape, strict=False):
            fits &= n % factor == 0 or start + n == end
        if fits:
            levels.setdefault(factor, level)
    return levels


def _reduced(tile: Tile, factor: int) -> Tile:
    """Return a tile in the pixels of a level."""
    window = (slice(span.start // factor, -(-span.stop // factor)) for span in tile.window)
    corner = tuple(start // factor for start in tile.corner)
    return tile._replace(window=Window(*window), corner=corner)
