"""Whole-slide images, which openslide reads by windows."""

from pathlib import Path

import numpy as np

from ..environment import require
from .blocks import require_small_blocks
from .file_headers import require_own_files
from .geometry import Window
from .image_source import ImageSource

SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif', '.svslide', '.dcm')


class Slide(ImageSource):
    """A whole-slide image that openslide opens, at its highest resolution."""

    def __init__(self, path: Path) -> None:
        require('openslide')
        import openslide

        self._file = openslide.OpenSlide(require_own_files(path))
        width, height = self._file.dimensions
        level = 'openslide.level[0].tile-'
        block = [int(self._file.properties.get(level + side, 1)) for side in ('height', 'width')]
        require_small_blocks(path, block, 4)
        super().__init__(str(path), path, (height, width, 3), np.dtype(np.uint8))

    def __reduce__(self) -> tuple:
        return Slide, (self._path,), dict(_state=self._state)

    def content(self) -> str:
        """Return a digest of the file, and openslide's digest of the files that belong to it."""
        return f'{super().content()} {self._file.properties.get("openslide.quickhash-1")}'

    def _read(self, window: Window) -> np.ndarray:
        height, width = window.size
        corner = window.columns.start, window.rows.start
        pixels = np.asarray(self._file.read_region(corner, 0, (width, height)))
        # Areas that were not scanned are transparent; they become white, like the glass.
        opaque = pixels[..., 3:] == 255
        return np.where(opaque, pixels[..., :3], np.uint8(255))
