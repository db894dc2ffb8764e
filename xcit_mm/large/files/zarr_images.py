"""Zarr arrays and images of OME-Zarr in local folders, read by windows."""

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ...base.environment import require
from ...base.errors import DependencyError, UserError
from ...base.geometry import Window
from ...base.processes import digest_of_file, shortened
from .blocks import require_small_blocks
from .image_source import ImageSource
from .levels import RESAMPLE, require_level
from .no_data import NoData
from .zarr_metadata import FILES, Level, levels_of

SMALLER = 'write it with smaller chunks'


class ZarrImage(ImageSource):
    """An array of Zarr, or an image of OME-Zarr at a level; 0 is its first scale.

    Axes with names (``dimension_names``, ``_ARRAY_DIMENSIONS`` of xarray, or the axes of OME-Zarr)
    are found by their names: y, x, and c for the channels, or similar ones. An array without names
    is (H, W), (H, W, channels) or (channels, H, W): the channels are the shorter of the first and
    the last axis. Other axes need the length 1.

    A chunk without a file is an error, unless the ``nodata`` that the user has named is the fill
    value of the array.

    Raises:
        UserError: If there is no such array, if a file is a link or has a codec that is not known,
            or if the array is not one image of real numbers.
    """

    def __init__(
        self,
        path: Path,
        channels: int | None = None,
        nodata: float | None = None,
        level: int = 0,
    ) -> None:
        if sys.version_info < (3, 11):
            raise DependencyError(f'{path}: Zarr needs Python 3.11; convert it to a TIFF file')
        require('zarr')
        self._arguments = path, channels, nodata, level
        levels = levels_of(path)
        sizes = [each.size for each in levels]
        require_level(str(path), level, sizes, RESAMPLE)
        self._level = levels[level]
        self._root = path.resolve()
        for _ in _regular_files(path, self._level.folder):
            pass  # before Zarr opens one of them
        self._array = _open_array(self._level)
        array, axes, dtype = self._array, self._level.axes, self._array.dtype
        if dtype.kind not in 'biuf':
            raise UserError(f'{path} has values of type {dtype}: write real numbers')
        rows, columns, _ = axes.shape(array.chunks)
        of_pixel = dtype.itemsize * math.prod(array.chunks) // (rows * columns)
        require_small_blocks(path, (rows, columns), of_pixel, SMALLER)
        super().__init__(str(path), path, axes.shape(array.shape), dtype, channels, nodata)
        self._use_level(level, sizes)
        self.pixel_size = self._level.pixel_size

    def __reduce__(self) -> tuple:
        return ZarrImage, self._arguments, dict(_state=self._state)

    def content(self) -> str:
        """Return a digest of the metadata and of all chunks."""
        digest = hashlib.sha256()
        for name, path in sorted(self._files()):
            digest.update(f'{name} {digest_of_file(path)}\n'.encode(errors='surrogateescape'))
        return shortened(digest)

    def _file_state(self) -> list:
        digest = hashlib.sha256()
        try:
            for name, path in sorted(self._files()):
                status = path.stat()
                line = f'{name} {status.st_size} {status.st_mtime_ns}\n'
                digest.update(line.encode(errors='surrogateescape'))
        except OSError:  # a file was removed
            return []
        return [str(self._level.folder), shortened(digest)]

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield the names and paths of the files of the array and of the group above it."""
        for path in _regular_files(self.name, self._level.folder):
            yield path.relative_to(self._root).as_posix(), path
        if self._level.folder != self._root:
            for name in FILES:
                if (self._root / name).is_file():
                    yield name, self._root / name

    def _read(self, window: Window) -> np.ndarray:
        axes = self._level.axes
        index = [slice(0, 1)] * self._array.ndim
        index[axes.rows], index[axes.columns] = window
        order = [axes.rows, axes.columns]
        if axes.channels is not None:
            index[axes.channels] = slice(0, self.channels)
            order.append(axes.channels)
        self._require_chunks(index)
        pixels = np.asarray(self._array[tuple(index)])
        pixels = pixels.transpose(order + [i for i in range(pixels.ndim) if i not in order])
        return np.ascontiguousarray(pixels.reshape(*window.size, self.channels))

    def _require_chunks(self, index: Sequence[slice]) -> None:
        """Refuse a part with a chunk without a file, for which Zarr returns the fill value."""
        fill = self._array.fill_value
        if self.nodata is not None and fill is not None and _is_same(fill, self.nodata):
            return
        sides = self._array.shards or self._array.chunks
        grid = (
            range(span.start // side, -(-span.stop // side))
            for span, side in zip(index, sides, strict=True)
        )
        for place in product(*grid):
            path = self._level.folder / self._array.metadata.encode_chunk_key(place)
            if not path.is_file():
                remedy = '' if fill is None else f', or name --nodata {fill:g} if it has no data'
                raise UserError(
                    f'{self.name}: the chunk {path.relative_to(self._root)} is missing: copy it '
                    f'again{remedy}'
                )


def _open_array(level: Level) -> Any:
    import zarr
    from zarr.storage import LocalStore

    store = LocalStore(level.folder, read_only=True)
    return zarr.open_array(store, mode='r', zarr_format=level.version)


def _regular_files(name: Path | str, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it, and refuse links and devices."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _regular_files(name, Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise UserError(
                    f'{name}: {entry.path} is a link, a pipe or a device: replace it with a copy'
                )


def _is_same(fill: Any, nodata: NoData) -> bool:
    return fill == nodata or (math.isnan(fill) and math.isnan(nodata))
