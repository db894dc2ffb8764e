"""Zarr arrays and images of OME-Zarr (NGFF 0.4 and 0.5) in local folders, read by windows."""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.environment import require
from ...base.errors import UserError
from ...base.finder import ZARR
from ...base.geometry import Window
from ...base.processes import shortened
from .image_source import FileSource, ReadOptions, require_level, require_small_blocks
from .pixel_sizes import PixelSize, in_micrometers, pixel_size_of

# The names of the axes in OME-Zarr and xarray, in lower case.
ROWS = 'y', 'lat', 'latitude', 'row', 'rows', 'height', 'h'
COLUMNS = 'x', 'lon', 'longitude', 'column', 'columns', 'width', 'w'
CHANNELS = 'c', 's', 'channel', 'channels', 'band', 'bands', 'wavelength', 'wavelengths'
PICKLE = 'pickle'  # the codec of numcodecs that runs code


def is_zarr(path: Path) -> bool:
    """Return whether a path is a folder of Zarr, or a folder in one."""
    return ZARR in (p.suffix.lower() for p in (path, *path.parents)) and path.is_dir()


class ZarrImage(FileSource):
    """An array of Zarr, or an image of OME-Zarr at a level; 0 is its first scale.

    Axes with names (``dimension_names``, ``_ARRAY_DIMENSIONS`` of xarray, or the axes of OME-Zarr)
    are found by their names: y, x, and c for the channels, or similar ones. An array without names
    is (H, W), (H, W, channels) or (channels, H, W): the channels are the shorter of the first and
    the last axis. Other axes need the length 1.

    A chunk without a file is an error, unless the ``nodata`` that the user has named is the fill
    value of the array.

    Raises:
        UserError: If there is no such image, or if it consists of links or runs code.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        require('zarr')
        import zarr
        from zarr.storage import LocalStore

        self._arguments, self._root = (path, options), path.resolve()
        for _ in _regular_files(self._root):
            pass  # before Zarr opens one of them
        node = zarr.open(LocalStore(self._root, read_only=True), mode='r')
        is_group = isinstance(node, zarr.Group)
        levels = [*_scales(path, node)] if is_group else [_level(str(path), node)]
        sizes = [each.shape[:2] for each in levels]
        require_level(str(path), options.level, sizes)
        self._array, self._axes, shape, pixel_size = levels[options.level]
        array, dtype = self._array, self._array.dtype
        if dtype.kind not in 'biuf' or PICKLE in str(array.metadata.to_dict() | {'attributes': 0}):
            raise UserError(f'{path} does not hold plain numbers, but {dtype}: write it with zstd')
        rows, columns = (array.chunks[axis] for axis in self._axes[:2])
        of_pixel = dtype.itemsize * math.prod(array.chunks) // (rows * columns)
        require_small_blocks(path, (rows, columns), of_pixel)
        super().__init__(str(path), path, shape, dtype, options.channels, options.nodata)
        self._use_level(options.level, sizes)
        self.pixel_size = pixel_size

    def _file_state(self) -> list:
        digest = hashlib.sha256()
        try:
            for entry in sorted(_regular_files(self._root), key=lambda entry: entry.path):
                status = entry.stat()
                line = f'{entry.path} {status.st_size} {status.st_mtime_ns}\n'
                digest.update(line.encode(errors='surrogateescape'))
        except OSError:  # a file was removed
            return []
        return [self._array.path, shortened(digest)]

    def _read(self, window: Window) -> np.ndarray:
        *axes, channels = self._axes
        index = [slice(0, 1)] * self._array.ndim
        index[axes[0]], index[axes[1]] = window
        if channels is not None:
            index[channels] = slice(0, self.channels)
            axes.append(channels)
        self._require_chunks(index)
        pixels = np.asarray(self._array[tuple(index)])
        pixels = pixels.transpose(axes + [i for i in range(pixels.ndim) if i not in axes])
        return np.ascontiguousarray(pixels.reshape(*window.size, self.channels))

    def _require_chunks(self, index: Sequence[slice]) -> None:
        """Refuse a part with a chunk without a file, for which Zarr returns the fill value."""
        array, fill = self._array, self._array.fill_value
        if self.nodata is not None and np.array_equal(fill, self.nodata, equal_nan=True):
            return
        spans = zip(index, array.shards or array.chunks, strict=True)
        for place in product(*(range(s.start // n, -(-s.stop // n)) for s, n in spans)):
            name = Path(array.path, array.metadata.encode_chunk_key(place))
            if not (self._root / name).is_file():
                raise UserError(
                    f'{self.name}: the chunk {name} is missing: copy it again, or name --nodata '
                    f'{fill} if it has no data'
                )


class _Level(NamedTuple):
    """An array: the numbers of the axes y, x and c or None, (H, W, channels), and its pixels."""

    array: Any
    axes: tuple[int, int, int | None]
    shape: tuple[int, int, int]
    pixel_size: PixelSize | None


def _scales(path: Path, group: Any) -> Iterator[_Level]:
    """Yield the levels of an image of OME-Zarr."""
    images = group.attrs.get('ome', group.attrs).get('multiscales')
    if not images:
        raise UserError(f'{path} is a group without an image of OME-Zarr: name an array in it')
    image = images[0]
    names = [axis['name'] for axis in image['axes']]
    for dataset in image['datasets']:
        factors = np.ones(len(names))
        for holder in (dataset, image):
            for change in holder.get('coordinateTransformations', ()):
                if change['type'] == 'scale':
                    factors *= change['scale']
        units = (axis.get('unit') for axis in image['axes'])
        sides = dict(zip(names, map(in_micrometers, factors, units), strict=True))
        pixel_size = pixel_size_of(sides.get('y'), sides.get('x'))
        yield _level(f'{path}/{dataset["path"]}', group[dataset['path']], names, pixel_size)


def _level(
    name: str, array: Any, names: Sequence[str] | None = None, pixel_size: PixelSize | None = None
) -> _Level:
    if names is None:
        names = getattr(array.metadata, 'dimension_names', None)
        names = names or array.attrs.get('_ARRAY_DIMENSIONS')
    shape = array.shape
    rows, columns, channels = axes = _axes(shape, names)
    others = [n for axis, n in enumerate(shape) if axis not in axes]
    if None in axes[:2] or columns >= len(shape) or others != [1] * len(others):
        raise UserError(
            f'{name} has the shape {shape} and the axes {names}, but an image has y, x '
            'and channels, and the length 1 along other axes: copy a part of it'
        )
    count = 1 if channels is None else shape[channels]
    return _Level(array, axes, (shape[rows], shape[columns], count), pixel_size)


def _axes(shape: Sequence[int], names: Sequence[str] | None) -> list[int | None]:
    """Return the numbers of the axes y, x and c of an array; None for an axis that it lacks."""
    if names and None not in names:
        return [
            next((i for i, axis in enumerate(names) if axis.lower() in usual), None)
            for usual in (ROWS, COLUMNS, CHANNELS)
        ]
    if len(shape) < 3:
        return [0, 1, None]
    first = len(shape) - 3
    is_first = shape[first] < shape[-1]
    return [first + is_first, first + is_first + 1, first if is_first else first + 2]


def _regular_files(folder: Path | str) -> Iterator[os.DirEntry]:
    """Yield the files of a folder and of the folders in it, and refuse links and devices."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _regular_files(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry
            else:
                raise UserError(f'{entry.path} is a link, a pipe or a device: copy what it names')
