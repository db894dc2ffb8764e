"""Labels in PNG files, read by windows."""

import struct
from pathlib import Path

import numpy as np

from ..files import open_regular
from .geometry import Window
from .rasters import Raster

START = b'\x89PNG\r\n\x1a\n'
SCALED_BITS = 2, 4  # of gray values that Pillow scales to 0..255


class PngLabels(Raster):
    """The labels in a PNG file, with the values that Pillow decodes.

    Rows are decoded in order. To read a window above the last one, GDAL starts again from the first
    row, unless it still holds the rows of the window.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, are_labels=True)
        is_scaled = self.max_value in [2**bits - 1 for bits in SCALED_BITS]
        is_gray = self._file.colorinterp[0].name == 'gray'
        self._factor = 255 // self.max_value if is_gray and is_scaled else 1

    def __reduce__(self) -> tuple:
        return PngLabels, (self._path,), dict(_state=self._state)

    def _read(self, window: Window) -> np.ndarray:
        return super()._read(window) * self.dtype.type(self._factor)


def png_size(path: Path) -> tuple[int, int] | None:
    """Return (H, W) from the header of a PNG file, or None if it is not a PNG file."""
    try:
        with open_regular(path) as file:
            start, width, height = struct.unpack('>8s8xII', file.read(24))
    except (OSError, struct.error):
        return None
    return (height, width) if start == START else None
