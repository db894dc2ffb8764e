"""The choice of the library that reads an image file by windows.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG) and JPEG 2000, openslide reads
the formats of slide scanners, and NumPy reads its own format. docs/large_images.md compares these
libraries with others.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import UserError, looked_in, reason
from ..files import open_regular
from ..weights.cache import is_url
from .arrays import Array, mapped
from .image_source import ImageSource
from .rasters import RASTERS, Raster
from .slides import SLIDES, Slide

ARRAYS = ('.npy',)


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
        return mapped(path, channels)
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


def open_header(path: Path) -> ImageSource:
    """Open an image for its size and georeference, without decoding it; its pixels may be wrong.

    Raises:
        UserError: If the file cannot be opened as an image.
    """

    def blank(name: str) -> np.ndarray:
        size = image_size(name)
        if size is None:
            raise UserError(f'{name} cannot be opened as an image: repair or remove it')
        return np.broadcast_to(np.uint8(0), size)

    return open_image(path, blank)
