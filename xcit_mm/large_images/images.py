"""Read images by windows: TIFF files of any kind, whole slides and memory maps.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG) and JPEG 2000, openslide reads
the formats of slide scanners, and NumPy reads its own format. docs/large_images.md compares these
libraries with others.
"""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from ..environment import require
from ..errors import ArgumentError, UserError, looked_in, reason
from ..files import open_regular
from ..processes import digest_of_file, shortened
from ..weights.download import is_url
from .windows import Window, tiles, whole

SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif', '.svslide', '.dcm')
ARRAYS = ('.npy',)
# The drivers of GDAL by suffix. Without a driver, GDAL looks at the content, so a text file that
# is named .tif could make it open any other file or address.
RASTERS = dict.fromkeys(('.tif', '.tiff', '.btf', '.tf8'), 'GTiff') | {'.jp2': 'JP2OpenJPEG'}
CACHE = 2**25  # bytes of decoded blocks that GDAL keeps
TILE_ROWS = 1100  # rows of pixels that a row of tiles reads
TILE = 2048, 2048  # pixels that are read at a time where any tile would do


class ImageSource(ABC):
    """An image that is read by windows.

    Attributes:
        name: The name of the image in messages.
        shape: (H, W, channels).
        dtype: The NumPy type of the values.
        max_value: The largest value that the integer type or the header of the file allows.
        georeference: ``crs`` and ``transform`` of a GeoTIFF, or {}.
    """

    def __init__(
        self, name: str, path: Path | None, shape: tuple[int, int, int], dtype: np.dtype
    ) -> None:
        self.name, self._path, self.shape, self.dtype = name, path, shape, dtype
        self.max_value = np.iinfo(dtype).max if dtype.kind in 'iu' else None
        self.georeference: dict[str, Any] = {}

    def read(self, window: Window) -> np.ndarray:
        """Return a window (h, w, channels).

        Raises:
            UserError: If the window cannot be read.
        """
        try:
            return self._read(window)
        except Exception as error:  # the decoders raise many kinds of errors
            rows, columns = window
            raise UserError(
                f'{self.name}: rows {rows.start} to {rows.stop} and columns {columns.start} to '
                f'{columns.stop} cannot be read ({reason(error.__cause__ or error)}): copy or '
                'repair the file'
            ) from None

    def identity(self) -> list:
        """Return what identifies the image: the state of its file, or its values."""
        if self._path is not None:
            status = self._path.stat()
            return [str(self._path.resolve()), status.st_size, status.st_mtime_ns]
        return [*self.shape, str(self.dtype), self.content()]

    def content(self) -> str:
        """Return a digest of the file, which is equal on other machines, or of the values."""
        if self._path is not None:
            return digest_of_file(self._path)
        digest = hashlib.sha256()
        for window in tiles(whole(self.shape[:2]), TILE):
            digest.update(self.read(window))
        return shortened(digest)

    @abstractmethod
    def _read(self, window: Window) -> np.ndarray: ...


class Array(ImageSource):
    """An image (H, W, channels) or (H, W) in an array, such as a memory map."""

    def __init__(self, image: np.ndarray, name: str, path: Path | None = None) -> None:
        if image.ndim == 2:
            image = image[..., None]
        if image.ndim != 3 or 0 in image.shape:
            raise ArgumentError(f'{name}: an array of shape {image.shape} is not (H, W, channels)')
        super().__init__(name, path, image.shape, image.dtype)
        self._image = image

    def _read(self, window: Window) -> np.ndarray:
        return np.array(self._image[tuple(window)])


class Raster(ImageSource):
    """An image file that rasterio opens."""

    def __init__(self, path: Path) -> None:
        require('rasterio')
        import rasterio

        # GDAL reads these settings when it opens a file and when it reads from it.
        self._settings = rasterio.Env(
            GDAL_CACHEMAX=CACHE, GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR', GDAL_NUM_THREADS=1
        )
        with self._settings, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about files without a georeference
            self._file = rasterio.open(path.resolve(), driver=RASTERS[path.suffix.lower()])
        file = self._file
        if file.block_shapes[0][1] == file.width:  # each column of tiles reads these strips again
            rows = TILE_ROWS * file.width * file.count * np.dtype(file.dtypes[0]).itemsize
            self._settings.options['GDAL_CACHEMAX'] = max(CACHE, rows)
        if file.dtypes.count(file.dtypes[0]) != file.count:
            raise UserError(f'{path}: its bands have the types {", ".join(file.dtypes)}: use one')
        if file.colorinterp[0].name == 'palette':
            raise UserError(f'{path} has a palette: convert it with gdal_translate -expand rgb')
        shape = file.height, file.width, file.count
        super().__init__(str(path), path, shape, np.dtype(file.dtypes[0]))
        bits = file.tags(1, ns='IMAGE_STRUCTURE').get('NBITS')
        if bits and self.max_value is not None:
            self.max_value = 2 ** int(bits) - 1
        if file.crs is not None or not file.transform.is_identity:
            self.georeference = dict(crs=file.crs, transform=file.transform)

    def _read(self, window: Window) -> np.ndarray:
        from rasterio.windows import Window as RasterWindow

        with self._settings:
            bands = self._file.read(window=RasterWindow.from_slices(*window))
        return np.moveaxis(bands, 0, -1)


class Slide(ImageSource):
    """A whole-slide image that openslide opens, at its highest resolution."""

    def __init__(self, path: Path) -> None:
        require('openslide')
        import openslide

        self._file = openslide.OpenSlide(path)
        width, height = self._file.dimensions
        super().__init__(str(path), path, (height, width, 3), np.dtype(np.uint8))

    def content(self) -> str:
        """Return a digest of the file, and openslide's of the files beside it."""
        return f'{super().content()} {self._file.properties.get("openslide.quickhash-1")}'

    def _read(self, window: Window) -> np.ndarray:
        height, width = window.size
        corner = window.columns.start, window.rows.start
        pixels = np.asarray(self._file.read_region(corner, 0, (width, height)))
        # Areas that were not scanned are transparent; they become white, like the glass.
        opaque = pixels[..., 3:] == 255
        return np.where(opaque, pixels[..., :3], np.uint8(255))


def open_image(image: str | Path | np.ndarray, read: Callable[[str], np.ndarray]) -> ImageSource:
    """Open an image that is read by windows.

    Args:
        image: A path, or an array (H, W, channels) such as a memory map.
        read: The function that reads any other path or URL as a whole image.

    Raises:
        UserError: If the file does not exist or cannot be opened as an image.
    """
    if isinstance(image, np.ndarray):
        return Array(image, 'the array')
    path = Path(image).expanduser()
    suffix = path.suffix.lower()
    if is_url(str(image)) or suffix not in (*SLIDES, *RASTERS, *ARRAYS):
        pixels = read(str(image))
        return Array(pixels, str(image), None if is_url(str(image)) else path)
    try:
        open_regular(path).close()
        if suffix in SLIDES:
            return Slide(path)
        if suffix in RASTERS:
            return Raster(path)
        return Array(np.load(path, mmap_mode='r'), str(path), path)
    except FileNotFoundError:
        raise UserError(f'{image} does not exist{looked_in(path)}') from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{image} cannot be opened ({reason(error)})') from None


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
    size: tuple[int, int], read: Callable[[Window], np.ndarray], max_side: int
) -> np.ndarray:
    """Return an image of (H, W), reduced by an integer factor so that no side exceeds a limit.

    ``read`` returns windows (h, w, channels), which are averaged, or windows (h, w), such as
    labels, of which every n-th value is taken.
    """
    factor = max(1, -(-max(size) // max_side))
    small = tuple(-(-n // factor) for n in size)
    picture = None
    side = max(1, TILE[0] // factor) * factor
    for window in tiles(whole(size), (side, side)):
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
