"""Image files that GDAL reads by windows, through rasterio."""

import warnings
from pathlib import Path

import numpy as np

from ..environment import require
from ..errors import UserError
from .blocks import require_small_blocks
from .file_headers import require_modest_header
from .geometry import Window
from .image_source import ImageSource

# The drivers of GDAL by suffix. Without a driver, GDAL looks at the content, so a text file that
# is named .tif could make it open any other file or address.
RASTERS = dict.fromkeys(('.tif', '.tiff', '.btf', '.tf8'), 'GTiff') | {'.jp2': 'JP2OpenJPEG'}
# PNG files of labels; OpenCV decodes PNG files of images.
LABELS = {'.png': 'PNG'}
CACHE = 2**25  # bytes of decoded blocks that GDAL keeps
# For an image in strips, GDAL keeps what a row of tiles reads, up to these limits.
STRIP_ROWS, STRIP_BYTES = 1100, 2**28
GDAL_CACHED_BANDS = 127  # if no more bands are interleaved, GDAL keeps them all


class Raster(ImageSource):
    """An image file that rasterio opens."""

    def __init__(self, path: Path, channels: int | None = None, are_labels: bool = False) -> None:
        require('rasterio')
        import rasterio

        require_modest_header(path)
        # GDAL reads these settings when it opens a file and when it reads from it.
        self._settings = rasterio.Env(
            GDAL_CACHEMAX=CACHE,
            GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR',
            GDAL_NUM_THREADS=1,
            # Otherwise, GDAL reads zeros where a PNG file is truncated.
            GDAL_PNG_WHOLE_IMAGE_OPTIM='NO',
            GDAL_PNG_SINGLE_BLOCK='NO',
        )
        driver = (RASTERS | LABELS)[path.suffix.lower()]
        with self._settings, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about files without a georeference
            self._file = rasterio.open(path.resolve(), driver=driver)
        file = self._file
        if file.dtypes.count(file.dtypes[0]) != file.count:
            raise UserError(
                f'{path}: its bands have the types {", ".join(file.dtypes)}: use one type'
            )
        if file.colorinterp[0].name == 'palette' and not are_labels:
            raise UserError(f'{path} has a palette: convert it with gdal_translate -expand rgb')
        shape, dtype = (file.height, file.width, file.count), np.dtype(file.dtypes[0])
        super().__init__(str(path), path, shape, dtype, channels)
        rows, columns = file.block_shapes[0]
        is_interleaved = file.interleaving == rasterio.enums.Interleaving.pixel
        of_pixel = dtype.itemsize * (file.count if is_interleaved else 1)
        require_small_blocks(path, (rows, columns), of_pixel)
        kept_bands = self.channels
        if is_interleaved and file.count <= GDAL_CACHED_BANDS:
            kept_bands = file.count
        of_row = columns * dtype.itemsize * kept_bands
        cache = min(2 * STRIP_BYTES, 4 * rows * of_row)  # the blocks around a corner
        if columns == file.width:  # all tiles of a row read the same strips
            self.max_rows = max(1, min(STRIP_ROWS, STRIP_BYTES // of_row))
            cache = (self.max_rows + 2 * rows) * of_row
        self._settings.options['GDAL_CACHEMAX'] = max(CACHE, cache)
        bits = file.tags(1, ns='IMAGE_STRUCTURE').get('NBITS')
        if bits and self.max_value is not None:
            self.max_value = 2 ** int(bits) - 1
        if file.crs is not None or not file.transform.is_identity:
            self.georeference = dict(crs=file.crs, transform=file.transform)
        self._are_labels = are_labels

    def __reduce__(self) -> tuple:
        arguments = self._path, self.channels, self._are_labels
        return Raster, arguments, dict(_state=self._state)

    def _read(self, window: Window) -> np.ndarray:
        from rasterio.windows import Window as RasterWindow

        with self._settings:
            bands = self._file.read(
                indexes=range(1, self.channels + 1), window=RasterWindow.from_slices(*window)
            )
        return np.moveaxis(bands, 0, -1)
