"""Image files that GDAL reads by windows, through rasterio."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window
from ...data.tiff.file_headers import Tags, require_modest_header
from ...data.tiff.places import ALONE, NOWHERE, RASTERS, place_of
from ...data.tiff.tiff_bands import Bands, color_bands, stored_bands
from .image_source import (
    FileSource,
    ImageSource,
    ReadOptions,
    require_level,
    require_small_blocks,
)
from .no_data import has_data, representable

# PNG files of labels; OpenCV decodes PNG files of images.
LABELS = {'.png': 'PNG'}
CACHE = 2**25  # bytes of decoded blocks that GDAL keeps
# For an image in strips, GDAL keeps what a row of tiles reads, up to these limits.
STRIP_ROWS, STRIP_BYTES = 1100, 2**28
GDAL_CACHED_BANDS = 127  # up to this number of interleaved bands, GDAL keeps all of them


class GdalImage(ImageSource):
    """An image that GDAL opens, at a level.

    Args:
        name: The name of the image in messages.
        path: Its file, if it is on this machine.
        open_file: Opens the image with arguments of ``rasterio.open``.
        options: What is read. Colors are in the order of :func:`.color_bands`.
        tags: The tags in the header that GDAL does not pass on.
    """

    def __init__(
        self,
        name: str,
        path: Path | None,
        open_file: Callable[..., Any],
        options: ReadOptions,
        tags: Tags,
    ) -> None:
        import rasterio

        # GDAL reads these settings when it opens a file and when it reads from it.
        self._settings = rasterio.Env(
            **ALONE,
            GDAL_CACHEMAX=CACHE,
            GDAL_NUM_THREADS=1,
            # Otherwise, GDAL reads zeros where a PNG file is truncated.
            GDAL_PNG_WHOLE_IMAGE_OPTIM='NO',
            GDAL_PNG_SINGLE_BLOCK='NO',
        )
        self._lock = Lock()  # GDAL reads a file in one thread at a time
        with self._settings, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about files without a georeference
            self._file, full, levels = _at_level(name, open_file, options.level)
            place = place_of(full, path)
        self._bands, self._alpha = _bands(name, self._file, options, tags)
        self.orientation = tags.orientation if place == NOWHERE else 1
        shape = *self._file.shape, self._bands.channels
        super().__init__(name, path, shape, self._bands.dtype, options.channels, options.nodata)
        self.max_value = self._bands.max_value
        self._limit_blocks()
        self._use_level(options.level, levels, place)
        self.file_nodata = self._file.nodatavals[0]
        self._masked = None
        if options.are_labels:
            self.has_gaps, self._alpha = False, None
        else:
            self._find_gaps(full)

    def _limit_blocks(self) -> None:
        """Refuse large blocks, and choose the height of windows and the size of GDAL's cache."""
        from rasterio.enums import Interleaving

        file, size = self._file, self.dtype.itemsize
        rows, columns = file.block_shapes[0]
        is_interleaved = file.interleaving == Interleaving.pixel
        require_small_blocks(
            self.name, (rows, columns), size * (file.count if is_interleaved else 1)
        )
        kept_bands = self.channels + (self._alpha is not None)
        if is_interleaved and file.count <= GDAL_CACHED_BANDS:
            kept_bands = file.count
        of_row = columns * size * kept_bands
        cache = min(2 * STRIP_BYTES, 4 * rows * of_row)  # the blocks around a corner
        if columns == file.width:  # all tiles of a row read the same strips
            self.max_rows = max(1, min(STRIP_ROWS, STRIP_BYTES // of_row))
            cache = (self.max_rows + 2 * rows) * of_row
        self._settings.options['GDAL_CACHEMAX'] = max(CACHE, cache)

    def _find_gaps(self, full: Any) -> None:
        """Note how the file marks pixels without data; ``full`` is the open full image."""
        file = self._file
        flags = [flag.name for flag in full.mask_flag_enums[0]]
        # Without a mask in the file, GDAL makes one from no-data values or the transparency. The
        # mask of the full image is read, because levels without a mask seem valid everywhere.
        if 'per_dataset' in flags and 'alpha' not in flags:
            self._masked = full
        dtype = np.dtype(file.dtypes[0])
        values = tuple(
            value if value is not None and representable(value, dtype) else None
            for value in (file.nodatavals[number - 1] for number in self._read_bands)
        )
        if self.nodata is None and None not in values:
            self.nodata = values
        is_marked = self.nodata is not None or self._masked is not None or self._alpha is not None
        self.has_gaps |= is_marked

    @property
    def _read_bands(self) -> tuple[int, ...]:
        return self._bands.numbers[: self.channels]

    def _read(self, window: Window) -> np.ndarray:
        return self._bands.image(self._of_file(window, self._read_bands))

    def _valid(self, window: Window) -> np.ndarray:
        valid = np.ones(window.size, bool)
        if self.nodata is not None or self.dtype.kind == 'f':
            values = self._of_file(window, self._read_bands)
            valid &= has_data(np.moveaxis(values, 0, -1), self.nodata)
        if self._masked is not None:
            valid &= self._mask(window) > 0
        if self._alpha is not None:
            valid &= self._of_file(window, self._alpha) > 0
        return valid

    def _mask(self, window: Window) -> np.ndarray:
        """Return the mask of a window, from the level of the mask that GDAL chooses."""
        from rasterio.windows import Window as RasterWindow

        size = self._masked.shape
        spans = zip(window, size, self.shape, strict=False)
        rows, columns = ((s.start * n / m, min(s.stop * n / m, n)) for s, n, m in spans)
        with self._lock, self._settings, self._raising():
            place = RasterWindow.from_slices(rows, columns)
            return self._masked.read_masks(1, window=place, out_shape=window.size)

    def _raising(self) -> AbstractContextManager:
        """Return what raises the errors that GDAL does not pass on."""
        return nullcontext()

    def _of_file(self, window: Window, bands: Any) -> np.ndarray:
        from rasterio.windows import Window as RasterWindow

        with self._lock, self._settings, self._raising():
            place = RasterWindow.from_slices(*window)
            return self._file.read(bands, window=place)


def _at_level(name: str, open_file: Callable[..., Any], level: int) -> tuple[Any, Any, list]:
    """Return the open image at a level, the open full image, and the sizes of all levels."""
    file = full = open_file()
    if full.tags(ns='OVERVIEWS'):  # GDAL would open them with any driver
        raise UserError(
            f'{name} names another file or address that holds its overviews: copy it with '
            'gdal_translate -nomd'
        )
    levels = [tuple(-(-n // factor) for n in full.shape) for factor in (1, *full.overviews(1))]
    require_level(name, level, levels)
    if level:
        file = open_file(overview_level=level - 1)
        levels[level] = file.shape
    return file, full, levels


def _bands(name: str, file: Any, options: ReadOptions, tags: Tags) -> tuple[Bands, int | None]:
    """Return the bands of the channels, and the band that is read as the opacity, if any."""
    channels, are_labels, _, _, is_stored = options
    if channels is not None and not are_labels and not is_stored:
        bands = color_bands(name, file, tags)
        return bands, bands.alpha
    is_mask = is_stored and channels < file.count and file.colorinterp[-1].name == 'alpha'
    return stored_bands(name, file), file.count if is_mask else None


class Raster(FileSource, GdalImage):
    """An image file that GDAL opens with the driver of its suffix."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        import rasterio

        tags = require_modest_header(path)
        driver = (RASTERS | LABELS)[path.suffix.lower()]
        open_file = partial(rasterio.open, path.resolve(), driver=driver)
        self._arguments = path, options
        super().__init__(str(path), path, open_file, options, tags)
