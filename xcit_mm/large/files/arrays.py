"""Images in arrays, such as memory maps of NumPy files."""

import mmap
from pathlib import Path

import numpy as np

from ...base.errors import ArgumentError
from ...base.geometry import Window, tiles
from ...data.tiff.places import place_of_file
from .image_source import ImageSource

MAPPED = 256, 256  # pixels of a memory map, with all channels, that are in memory at a time


class Array(ImageSource):
    """An image (H, W, channels) or (H, W) in an array, such as a memory map."""

    def __init__(
        self,
        image: np.ndarray,
        name: str,
        path: Path | None = None,
        channels: int | None = None,
        nodata: float | None = None,
    ) -> None:
        if image.ndim == 2:
            image = image[..., None]
        if image.ndim != 3 or 0 in image.shape:
            raise ArgumentError(f'{name}: an array of shape {image.shape} is not (H, W, channels)')
        super().__init__(name, path, image.shape, image.dtype, channels, nodata)
        self._image = image[..., : self.channels]
        if path is not None:
            self._use_level(0, self.levels, place_of_file(path))

    def __reduce__(self) -> tuple:
        if getattr(self._image, 'mode', None) == 'r' and self._path is not None:
            return mapped, (self._path, self.channels, self.nodata), dict(_state=self._state)
        arguments = self._image, self.name, self._path, None, self.nodata
        return Array, arguments, dict(_state=self._state, shape=self.shape)

    def _read(self, window: Window) -> np.ndarray:
        if getattr(self._image, 'mode', None) != 'r':
            return np.array(self._image[tuple(window)])
        pixels = np.empty((*window.size, self.channels), self.dtype)
        for tile in tiles(window, MAPPED):
            pixels[tuple(tile.within(window))] = self._image[tuple(tile)]
            # Pages that were read count as memory of this process, with the channels that are not
            # used. The operating system still keeps them in its cache.
            if hasattr(mmap, 'MADV_DONTNEED'):  # not on Windows
                self._image._mmap.madvise(mmap.MADV_DONTNEED)
        return pixels


def mapped(path: Path, channels: int | None, nodata: float | None = None) -> Array:
    array = np.lib.format.open_memmap(path, mode='r')  # np.load would also open archives
    return Array(array, str(path), path, channels, nodata)
