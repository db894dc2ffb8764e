"""Images that are read by windows: TIFF files of any kind, whole slides and memory maps.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG) and JPEG 2000, openslide reads
the formats of slide scanners, and NumPy reads its own format. docs/large_images.md compares these
libraries with others.
"""

import hashlib
import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from ..environment import require
from ..errors import ArgumentError, UserError, looked_in, reason
from ..files import open_regular
from ..processes import digest_of_file, shortened
from ..weights.cache import is_url
from .file_headers import require_modest_header, require_own_files
from .geometry import Window, tiles, whole

SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif', '.svslide', '.dcm')
ARRAYS = ('.npy',)
# The drivers of GDAL by suffix. Without a driver, GDAL looks at the content, so a text file that
# is named .tif could make it open any other file or address.
RASTERS = dict.fromkeys(('.tif', '.tiff', '.btf', '.tf8'), 'GTiff') | {'.jp2': 'JP2OpenJPEG'}
# PNG files of labels; OpenCV decodes PNG files of images.
LABELS = {'.png': 'PNG'}
CACHE = 2**25  # bytes of decoded blocks that GDAL keeps
# Bytes of a block. GDAL decodes it as a whole, with all bands if they are interleaved.
MAX_BLOCK = 2**28
MAX_CHANNELS = 2**12  # GDAL looks at each band whenever it reads a few of them
# For an image in strips, GDAL keeps what a row of tiles reads, up to these limits.
STRIP_ROWS, STRIP_BYTES = 1100, 2**28
GDAL_CACHED_BANDS = 127  # if no more bands are interleaved, GDAL keeps them all
TILE = 2048, 2048  # pixels that are read at a time where any tile would do
# How messages about a file that has changed end, with the remedy.
PREDICTED = 'it was predicted: predict it again when it is complete'
TRAINED = 'a training step read it: resume the run when it is complete'
MAPPED = 256, 256  # pixels of a memory map, with all channels, that are in memory at a time


class WindowError(UserError):
    """A window of an image cannot be read."""


class ImageSource(ABC):
    """An image that is read by windows.

    A pickled image is opened again, for example one that another process sends.

    Attributes:
        name: The name of the image in messages.
        shape: (H, W, channels) of the file.
        channels: The number of channels, from the first, that are read.
        max_rows: The largest height of windows if the file is decoded once for a row of windows,
            or None for any height.
        dtype: The NumPy type of the values.
        max_value: The largest value that the integer type or the header of the file allows.
        georeference: ``crs`` and ``transform`` of a GeoTIFF, or {}.
    """

    max_rows: int | None = None

    def __init__(
        self,
        name: str,
        path: Path | None,
        shape: tuple[int, int, int],
        dtype: np.dtype,
        channels: int | None = None,
    ) -> None:
        self.name, self._path, self.shape, self.dtype = name, path, shape, dtype
        self.channels = min(shape[2], channels or shape[2])
        if shape[2] > MAX_CHANNELS:
            raise UserError(
                f'{name} has {shape[2]} channels, but at most {MAX_CHANNELS} can be read: copy '
                'those that the model needs to another file'
            )
        self.max_value = np.iinfo(dtype).max if dtype.kind in 'iu' else None
        self.georeference: dict[str, Any] = {}
        self._state = self._file_state()

    def read(self, window: Window) -> np.ndarray:
        """Return a window (h, w, ``channels``).

        Raises:
            WindowError: If the window cannot be read.
        """
        try:
            return self._read(window)
        except UserError:  # of another image, from which this one is computed
            raise
        except Exception as error:  # the decoders raise many kinds of errors
            rows, columns = window
            raise WindowError(
                f'{self.name}: rows {rows.start} to {rows.stop} and columns {columns.start} to '
                f'{columns.stop} cannot be read ({reason(error.__cause__ or error)}): copy or '
                'repair the file'
            ) from None

    def identity(self) -> list:
        """Return what identifies the image: the state of its file, or its values."""
        if self._state is not None:
            return self._state
        return [*self.shape, str(self.dtype), self.content()]

    def content(self) -> str:
        """Return a digest of the file, which is equal on other machines, or of the values."""
        if self._path is not None:
            return digest_of_file(self._path)
        digest = hashlib.sha256()
        for window in self.windows():
            digest.update(self.read(window))
        return shortened(digest)

    def windows(self) -> Iterator[Window]:
        """Yield windows that cover the image; a file in strips is decoded once for all of them."""
        return tiles(whole(self.shape[:2]), _tile(self.max_rows))

    def require_unchanged(self, use: str = PREDICTED) -> None:
        """Raise a UserError if the file has changed since it was opened.

        ``use`` is ``PREDICTED`` or ``TRAINED``, the end of the message.
        """
        if self._file_state() != self._state:
            raise UserError(f'{self.name} has changed while {use}')

    def _file_state(self) -> list | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:  # it was removed
            return []
        return [str(self._path.resolve()), status.st_size, status.st_mtime_ns]

    @abstractmethod
    def _read(self, window: Window) -> np.ndarray: ...


class Array(ImageSource):
    """An image (H, W, channels) or (H, W) in an array, such as a memory map."""

    def __init__(
        self,
        image: np.ndarray,
        name: str,
        path: Path | None = None,
        channels: int | None = None,
    ) -> None:
        if image.ndim == 2:
            image = image[..., None]
        if image.ndim != 3 or 0 in image.shape:
            raise ArgumentError(f'{name}: an array of shape {image.shape} is not (H, W, channels)')
        super().__init__(name, path, image.shape, image.dtype, channels)
        self._image = image[..., : self.channels]

    def __reduce__(self) -> tuple:
        if getattr(self._image, 'mode', None) == 'r' and self._path is not None:
            return _mapped, (self._path, self.channels), dict(_state=self._state)
        arguments = self._image, self.name, self._path
        return Array, arguments, dict(_state=self._state, shape=self.shape)

    def _read(self, window: Window) -> np.ndarray:
        if getattr(self._image, 'mode', None) != 'r':
            return np.array(self._image[tuple(window)])
        pixels = np.empty((*window.size, self.channels), self.dtype)
        for tile in tiles(window, MAPPED):
            pixels[tuple(tile.within(window))] = self._image[tuple(tile)]
            # Pages that were read count as memory of this process, with the channels that are not
            # used. The operating system still keeps them in its cache.
            self._image._mmap.madvise(mmap.MADV_DONTNEED)
        return pixels


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
        _require_small_blocks(path, (rows, columns), of_pixel)
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


class Slide(ImageSource):
    """A whole-slide image that openslide opens, at its highest resolution."""

    def __init__(self, path: Path) -> None:
        require('openslide')
        import openslide

        self._file = openslide.OpenSlide(require_own_files(path))
        width, height = self._file.dimensions
        level = 'openslide.level[0].tile-'
        block = [int(self._file.properties.get(level + side, 1)) for side in ('height', 'width')]
        _require_small_blocks(path, block, 4)
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


def _tile(max_rows: int | None) -> tuple[int, int]:
    rows, columns = TILE
    return rows if max_rows is None else min(max_rows, rows), columns


def _require_small_blocks(path: Path, size: Sequence[int], bytes_of_pixel: int) -> None:
    """Refuse a file with blocks (h, w) that take too much memory."""
    rows, columns = size
    needed = rows * columns * bytes_of_pixel
    if needed > MAX_BLOCK:
        raise UserError(
            f'{path} consists of blocks of {columns}x{rows} pixels that take {needed} bytes each, '
            f'but at most {MAX_BLOCK} are possible: convert it with gdal_translate -co TILED=YES '
            '-co INTERLEAVE=BAND'
        )


def open_image(
    image: str | Path | np.ndarray,
    read: Callable[[str], np.ndarray],
    channels: int | None = None,
    are_labels: bool = False,
) -> ImageSource:
    """Open an image that is read by windows: a path, or an array (H, W, channels).

    ``read`` reads the whole image of a path or URL that cannot be read by windows, and ``channels``
    is the number of channels, from the first, that are read (default: all). A TIFF file with a
    palette is an image of labels or an error.

    Raises:
        UserError: If the file does not exist or cannot be opened as an image.
    """
    if isinstance(image, np.ndarray):
        return Array(image, 'the array', channels=channels)
    path = Path(image).expanduser()
    suffix = path.suffix.lower()
    if is_url(str(image)) or suffix not in (*SLIDES, *RASTERS, *ARRAYS):
        pixels = read(str(image))
        return Array(pixels, str(image), None if is_url(str(image)) else path, channels)
    try:
        open_regular(path).close()
        if suffix in SLIDES:
            return Slide(path)
        if suffix in RASTERS:
            return Raster(path, channels, are_labels)
        return _mapped(path, channels)
    except FileNotFoundError:
        raise UserError(f'{image} does not exist{looked_in(path)}') from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{image} cannot be opened ({reason(error)})') from None


def _mapped(path: Path, channels: int | None) -> Array:
    array = np.lib.format.open_memmap(path, mode='r')  # np.load would also open archives
    return Array(array, str(path), path, channels)


def image_size(path: str) -> tuple[int, int] | None:
    """Return (H, W) of an image file, or None if its header cannot be read."""
    suffix = Path(path).suffix.lower()
    try:
        if suffix in (*SLIDES, *RASTERS, *ARRAYS):
            return open_image(path, str).shape[:2]
        with open_regular(Path(path)) as file, Image.open(file) as image:
            return image.size[::-1]
    except Exception:  # the decoder reports later what is wrong
        return None


def overview(
    size: tuple[int, int],
    read: Callable[[Window], np.ndarray],
    max_side: int,
    max_rows: int | None = None,
) -> np.ndarray:
    """Return an image of (H, W), reduced by an integer factor so that no side exceeds a limit.

    ``read`` returns windows (h, w, channels) of pixels, whose mean is computed, or windows (h, w)
    of labels, of which every n-th is kept. The windows have about ``max_rows`` rows at most.
    """
    factor = max(1, -(-max(size) // max_side))
    small = tuple(-(-n // factor) for n in size)
    picture = None
    tile = tuple(max(1, n // factor) * factor for n in _tile(max_rows))
    for window in tiles(whole(size), tile):
        values = read(window)
        target = Window(*(slice(s.start // factor, -(-s.stop // factor)) for s in window))
        if values.ndim == 2:
            values = values[::factor, ::factor]
        else:
            missing = [-n % factor for n in window.size]
            values = np.pad(values, [(0, missing[0]), (0, missing[1]), (0, 0)], 'edge')
            values = cv2.resize(values, target.size[::-1], interpolation=cv2.INTER_AREA)
            values = values.reshape(*target.size, -1)
        if picture is None:
            picture = np.zeros((*small, *values.shape[2:]), values.dtype)
        picture[tuple(target)] = values
    return picture
