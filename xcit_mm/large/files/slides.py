"""Whole-slide images, which openslide reads by windows."""

import math
from pathlib import Path

import numpy as np

from ...base.environment import require
from ...base.geometry import Window, tiles
from ...data.tiff.file_headers import require_own_files
from .image_source import (
    FileSource,
    ReadOptions,
    SourceWithGaps,
    require_level,
    require_small_blocks,
)
from .no_data import has_data
from .pixel_sizes import pixel_size_of, to_full_size
from .validity import box_of

SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif', '.svslide', '.dcm')
# Pixels of a level that is read to find where a slide was scanned, and of the blocks that are read
# of levels whose pixels do not lie at pixels of the full image.
MAX_SURVEYED, BLOCK = 2**22, 1024


class Slide(FileSource, SourceWithGaps):
    """A whole-slide image that openslide opens, at a level; 0 is its highest resolution.

    Areas that were not scanned have no data. Some scanners (MIRAX, Leica, Ventana) note the bounds
    of the scanned area. QuPath shows only what is within them and counts from their corner, so the
    ``transform`` of the georeference leads to pixels from there.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        require('openslide')
        import openslide

        self._arguments, level = (path, options), options.level
        self._file = openslide.OpenSlide(require_own_files(path))
        levels = [size[::-1] for size in self._file.level_dimensions]
        require_level(str(path), level, levels)
        properties = self._file.properties
        for number in range(len(levels)):
            tile = f'openslide.level[{number}].tile-'
            block = [int(properties.get(tile + side, 1)) for side in ('height', 'width')]
            require_small_blocks(path, block, 4)
        shape = *levels[level], 3
        super().__init__(str(path), path, shape, np.dtype(np.uint8), nodata=options.nodata)
        self.has_gaps = True
        self._use_level(level, levels)
        corner = [int(properties.get(f'openslide.bounds-{axis}', 0)) for axis in 'yx']
        if any(corner):
            self.georeference = to_full_size(shape, levels[0], corner)
        sides = (properties.get(f'openslide.mpp-{axis}') for axis in 'yx')
        if (pixel := pixel_size_of(*sides)) is not None:
            self.pixel_size = pixel.reduced(levels[0], shape)

    def valid_box(self) -> Window:
        """Return the box of the scanned area, from the smallest level."""
        smallest = self.levels[-1]
        if math.prod(smallest) > MAX_SURVEYED:
            return super().valid_box()
        level = len(self.levels) - 1
        alpha = np.asarray(self._file.read_region((0, 0), level, smallest[::-1]))[..., 3]
        box = box_of(alpha > 0)
        if 0 in box.size:
            return box
        # A pixel on each side may be part of an area that was scanned.
        sides = zip(box.grown(1, smallest), smallest, self.shape, strict=False)
        return Window(*(slice(s.start * size // n, -(-s.stop * size // n)) for s, n, size in sides))

    def _read_both(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels of a window, and which of them have data."""
        pixels = self._rgba(window)
        is_scanned = pixels[..., 3] == 255
        # Areas that were not scanned are transparent; they become white, like the glass.
        rgb = np.where(is_scanned[..., None], pixels[..., :3], np.uint8(255))
        return rgb, is_scanned & has_data(rgb, self.nodata)

    def _rgba(self, window: Window) -> np.ndarray:
        height, width = window.size
        steps = [n / m for n, m in zip(self.full_size, self.shape, strict=False)]
        if all(step.is_integer() for step in steps):
            return self._region(window)
        # openslide interpolates pixels whose corner is between pixels of the full image, so blocks
        # begin at fixed places: each pixel has the same values in any window.
        pixels = np.empty((height, width, 4), np.uint8)
        for part in tiles(window, (BLOCK, BLOCK)):
            corner = (span.start // BLOCK * BLOCK for span in part)
            block = Window(*(slice(start, start + BLOCK) for start in corner))
            block = block.clipped(self.shape[:2])
            pixels[tuple(part.within(window))] = self._region(block)[tuple(part.within(block))]
        return pixels

    def _region(self, window: Window) -> np.ndarray:
        rows, columns = window
        y, x = (
            round(span.start * full / size)
            for span, full, size in zip(window, self.full_size, self.shape, strict=False)
        )
        size = columns.stop - columns.start, rows.stop - rows.start
        return np.asarray(self._file.read_region((x, y), self.level, size))
