"""Image files that GDAL reads by windows, through rasterio."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..environment import require
from ..errors import UserError
from ..file_headers import require_modest_header
from .blocks import require_small_blocks
from .geometry import Window
from .image_source import ImageSource
from .levels import ADD_LEVELS, RESAMPLE, require_level
from .no_data import has_data, representable
from .pixel_sizes import pixel_size_on_map
from .reference_systems import require_plain

# The drivers of GDAL by suffix. Without a driver, GDAL looks at the content, so a text file that
# is named .tif could make it open any other file or address.
RASTERS = dict.fromkeys(('.tif', '.tiff', '.btf', '.tf8'), 'GTiff') | {'.jp2': 'JP2OpenJPEG'}
# PNG files of labels; OpenCV decodes PNG files of images.
LABELS = {'.png': 'PNG'}
CACHE = 2**25  # bytes of decoded blocks that GDAL keeps
# For an image in strips, GDAL keeps what a row of tiles reads, up to these limits.
STRIP_ROWS, STRIP_BYTES = 1100, 2**28
GDAL_CACHED_BANDS = 127  # up to this number of interleaved bands, GDAL keeps all of them


class GdalImage(ImageSource):
    """An image that GDAL opens, at a level; 0 is the full image, and N is its N-th overview.

    Args:
        name: The name of the image in messages.
        path: Its file, if it is on this machine.
        open_file: Opens the image with arguments of ``rasterio.open``.
        channels: The number of channels, from the first, that are read, without transparency.
            Default: all bands, among them the transparency.
        are_labels: Whether palettes are allowed, and no pixel is without data.
        nodata: The value of pixels without data. Default: the value in the file.
        level: The number of the level.
        keep_alpha: Whether the transparency is a channel if it is among the first ``channels``.
    """

    def __init__(
        self,
        name: str,
        path: Path | None,
        open_file: Callable[..., Any],
        channels: int | None = None,
        are_labels: bool = False,
        nodata: float | None = None,
        level: int = 0,
        keep_alpha: bool = False,
    ) -> None:
        import rasterio

        # GDAL reads these settings when it opens a file and when it reads from it.
        self._settings = rasterio.Env(
            GDAL_CACHEMAX=CACHE,
            GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR',
            GDAL_NUM_THREADS=1,
            # Otherwise, GDAL reads zeros where a PNG file is truncated.
            GDAL_PNG_WHOLE_IMAGE_OPTIM='NO',
            GDAL_PNG_SINGLE_BLOCK='NO',
        )
        self._lock = Lock()  # GDAL reads a file in one thread at a time
        with self._settings, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about files without a georeference
            self._file = file = open_file()
            if file.tags(ns='OVERVIEWS'):  # GDAL would open them with any driver
                raise UserError(
                    f'{name} names another file or address that holds its overviews: copy it with '
                    'gdal_translate -nomd'
                )
            size = file.height, file.width
            factors = file.overviews(1)
            levels = [size, *(tuple(-(-n // factor) for n in size) for factor in factors)]
            require_level(name, level, levels, RESAMPLE if factors else ADD_LEVELS)
            if level:
                self._file = file = open_file(overview_level=level - 1)
                levels[level] = file.height, file.width
        if file.dtypes.count(file.dtypes[0]) != file.count:
            raise UserError(
                f'{name}: its bands have the types {", ".join(file.dtypes)}: use one type'
            )
        if file.colorinterp[0].name == 'palette' and not are_labels:
            raise UserError(f'{name} has a palette: convert it with gdal_translate -expand rgb')
        kinds = [kind.name for kind in file.colorinterp]
        self._alpha = None
        is_channel = channels is None or (keep_alpha and channels >= file.count)
        if not is_channel and not are_labels and kinds[-1] == 'alpha' and file.count > 1:
            self._alpha = file.count
        count = file.count - (self._alpha is not None)
        shape, dtype = (file.height, file.width, count), np.dtype(file.dtypes[0])
        super().__init__(name, path, shape, dtype, channels, nodata)
        self._limit_blocks()
        bits = file.tags(1, ns='IMAGE_STRUCTURE').get('NBITS')
        if bits and self.max_value is not None:
            self.max_value = 2 ** int(bits) - 1
        if file.crs is not None:
            try:
                require_plain(file.crs.to_wkt())
            except ValueError as error:
                raise UserError(f'{name}: {error}: replace it with gdal_edit.py -a_srs') from None
        if file.crs is not None or not file.transform.is_identity:
            if not (level and file.crs is None):
                self.georeference = dict(crs=file.crs, transform=file.transform)
            self.pixel_size = pixel_size_on_map(file.crs, file.transform)
        self._use_level(level, levels)
        self._are_labels = are_labels
        self._find_gaps()

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

    def _find_gaps(self) -> None:
        """Note how the file marks pixels without data."""
        file, bands = self._file, slice(self.channels)
        self.file_nodata = file.nodatavals[0]
        flags = [flag.name for flag in file.mask_flag_enums[0]]
        # Without a mask in the file, GDAL makes one from no-data values or the transparency.
        self._has_mask = 'per_dataset' in flags and 'alpha' not in flags
        if self._are_labels:
            self._has_mask = self.has_gaps = False
            return
        values = tuple(
            value if value is not None and representable(value, self.dtype) else None
            for value in file.nodatavals[bands]
        )
        if self.nodata is None and None not in values:
            self.nodata = values
        is_marked = self.nodata is not None or self._has_mask or self._alpha is not None
        self.has_gaps |= is_marked

    def _read(self, window: Window) -> np.ndarray:
        bands = self._of_file('read', window, range(1, self.channels + 1))
        return np.moveaxis(bands, 0, -1)

    def _valid(self, window: Window) -> np.ndarray:
        valid = np.ones(window.size, bool)
        if self.nodata is not None or self.dtype.kind == 'f':
            valid &= has_data(self._read(window), self.nodata)
        if self._has_mask:
            valid &= self._of_file('read_masks', window, 1) > 0
        if self._alpha is not None:
            valid &= self._of_file('read', window, self._alpha) > 0
        return valid

    def warped(self, **grid: Any) -> Callable[[Window], tuple[np.ndarray, np.ndarray]]:
        """Return what reads the first band, and its mask, on another grid, by the nearest pixel.

        The grid is the arguments ``crs``, ``transform``, ``height`` and ``width`` of rasterio's
        ``WarpedVRT``.
        """
        from rasterio.enums import Resampling
        from rasterio.vrt import WarpedVRT
        from rasterio.windows import Window as RasterWindow

        # With GDAL's usual tolerance, a pixel depends on the window that is read.
        with self._lock, self._settings:
            vrt = WarpedVRT(self._file, resampling=Resampling.nearest, tolerance=1e-9, **grid)

        def read(window: Window) -> tuple[np.ndarray, np.ndarray]:
            place = RasterWindow.from_slices(*window)
            with self._lock, self._settings, self._raising():
                return vrt.read(1, window=place), vrt.read_masks(1, window=place)

        return read

    def _raising(self) -> AbstractContextManager:
        """Return what raises the errors that GDAL does not pass on."""
        return nullcontext()

    def _of_file(self, method: str, window: Window, bands: Any) -> np.ndarray:
        from rasterio.windows import Window as RasterWindow

        with self._lock, self._settings, self._raising():
            place = RasterWindow.from_slices(*window)
            return getattr(self._file, method)(bands, window=place)


class Raster(GdalImage):
    """An image file that GDAL opens with the driver of its suffix."""

    def __init__(
        self,
        path: Path,
        channels: int | None = None,
        are_labels: bool = False,
        nodata: float | None = None,
        level: int = 0,
        keep_alpha: bool = False,
    ) -> None:
        require('rasterio')
        import rasterio

        require_modest_header(path)
        driver = (RASTERS | LABELS)[path.suffix.lower()]
        open_file = partial(rasterio.open, path.resolve(), driver=driver)
        self._arguments = path, channels, are_labels, nodata, level, keep_alpha
        super().__init__(str(path), path, open_file, *self._arguments[1:])

    def __reduce__(self) -> tuple:
        return Raster, self._arguments, dict(_state=self._state)
