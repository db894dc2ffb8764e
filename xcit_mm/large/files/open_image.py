"""The choice of the library that reads an image by windows.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG, the pages of OME-TIFF, mosaics
of files, files by address) and JPEG 2000. openslide reads the formats of slide scanners, zarr reads
Zarr and OME-Zarr, and NumPy reads its own format. docs/scenes.md compares these libraries with
others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, UserError, looked_in, reason
from ...base.files import open_regular
from ...data.tiff.tiff_bands import turns_of
from ...data.transforms.decode import size_of
from ...network.weights.cache import is_url
from .arrays import Array, mapped
from .image_source import ImageSource
from .levels import require_level
from .mosaics import open_mosaic
from .ome_tiff import OmeTiff, is_ome
from .rasters import RASTERS, Raster
from .remote_rasters import REMOTE, RemoteRaster
from .resampled_image import at_resolution, level_for
from .slides import SLIDES, Slide
from .symmetries import Symmetry, TurnedImage
from .virtual_rasters import VIRTUAL, open_virtual
from .zarr_images import ZarrImage
from .zarr_metadata import is_zarr

ARRAYS = ('.npy',)
BY_WINDOWS = (*SLIDES, *RASTERS, *VIRTUAL, *ARRAYS)


def open_image(
    image: str | Path | np.ndarray | Sequence[str | Path],
    read: Callable[[str], np.ndarray],
    channels: int | None = None,
    are_labels: bool = False,
    *,
    nodata: float | None = None,
    level: int | None = None,
    resolution: float | None = None,
) -> ImageSource:
    """Open an image that is read by windows: a path, an address, or an array (H, W, channels).

    Args:
        image: The image, or several tiles of one scene.
        read: Reads the whole image of a path or URL that cannot be read by windows.
        channels: The number of channels, from the first, that are read. Default: all.
        are_labels: Whether the image holds labels: palettes are allowed, and no pixel is without
            data.
        nodata: The value of pixels without data, instead of the value in the file.
        level: The number of the level that is read; 0, the default, is the full image.
        resolution: The size of a pixel, in meters on the ground, or micrometers for slides, OME
            files and OME-Zarr.

    Raises:
        ArgumentError: If a value is invalid, or both ``level`` and ``resolution`` are given.
        UserError: If the file does not exist or cannot be opened as an image, or has no such level
            or no resolution.
    """
    if level is not None and resolution is not None:
        raise ArgumentError('--level and --resolution cannot be combined: leave one of them out')
    options = read, channels, are_labels, nodata
    source = _upright(image, *options, level or 0)
    if resolution is None:
        return source
    if best := level_for(source, resolution):
        source = _upright(image, *options, best)
    return at_resolution(source, resolution)


def _upright(*arguments: Any) -> ImageSource:
    """Open an image at a level, in its orientation for display."""
    source = _opened(*arguments)
    if source.orientation == 1:
        return source
    return TurnedImage(source, Symmetry(*turns_of(source.orientation)))


def _opened(
    image: str | Path | np.ndarray | Sequence[str | Path],
    read: Callable[[str], np.ndarray],
    channels: int | None,
    are_labels: bool,
    nodata: float | None,
    level: int,
) -> ImageSource:
    """Open an image at a level."""
    if isinstance(image, np.ndarray):
        require_level('the array', level, [image.shape[:2]])
        return Array(image, 'the array', None, channels, nodata)
    if not isinstance(image, (str, Path)):
        for tile in map(str, image):
            if is_url(tile):
                raise UserError(f'{tile}: the tiles of a mosaic are local files; download it first')
        return _opened_mosaic([Path(path).expanduser() for path in image], channels, nodata, level)
    path, is_remote = Path(image).expanduser(), is_url(str(image))
    if is_remote and suffix_of(str(image)) in REMOTE:
        with errors_of(image):
            return RemoteRaster(str(image), channels, are_labels, nodata, level)
    if not is_remote and is_zarr(path):
        with errors_of(image):
            return ZarrImage(path, channels, nodata, level)
    if is_remote or path.suffix.lower() not in BY_WINDOWS:
        pixels = read(str(image))
        require_level(str(image), level, [pixels.shape[:2]])
        file = None if is_remote else path
        return Array(pixels, str(image), file, channels, nodata)
    with errors_of(image):
        return _opened_file(path, channels, are_labels, nodata, level)


def _opened_file(
    path: Path, channels: int | None, are_labels: bool, nodata: float | None, level: int
) -> ImageSource:
    """Open a file that is read by windows."""
    suffix = path.suffix.lower()
    open_regular(path).close()
    if suffix in SLIDES:
        return Slide(path, nodata, level)
    if is_ome(path) and not are_labels:
        return OmeTiff(path, channels, nodata, level)
    if suffix in RASTERS:
        return Raster(path, channels, are_labels, nodata, level)
    if suffix in VIRTUAL:
        return open_virtual(path, channels, nodata, level)
    source = mapped(path, channels, nodata)
    require_level(source.name, level, source.levels)
    return source


def _opened_mosaic(
    paths: Sequence[Path], channels: int | None, nodata: float | None, level: int
) -> ImageSource:
    if not paths:
        raise ArgumentError('[]: a mosaic needs at least one file')
    for path in paths:
        with errors_of(path):
            open_regular(path).close()
    return open_mosaic(paths, channels, nodata, level)


@contextmanager
def errors_of(image: str | Path) -> Iterator[None]:
    """Turn the errors of opening a file into a sentence that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f'{image} does not exist{looked_in(image)}') from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{image} cannot be opened ({reason(error)})') from None


def image_size(path: str) -> tuple[int, int] | None:
    """Return (H, W) of an image file, or None if its header cannot be read."""
    try:
        if is_zarr(Path(path)) or suffix_of(path) in (REMOTE if is_url(path) else BY_WINDOWS):
            return open_image(path, str).shape[:2]
        with open_regular(Path(path)) as file:
            return size_of(file, path=Path(path))[::-1]
    except Exception:  # the decoder will report what is wrong
        return None


def needs_windows(image: str) -> bool:
    """Return whether a file is of a kind that only :func:`open_image` reads."""
    is_file = suffix_of(image) in (*SLIDES, *VIRTUAL, *ARRAYS)
    return not is_url(image) and (is_file or is_zarr(Path(image).expanduser()))


def suffix_of(image: str) -> str:
    """Return the suffix of a path or an address in lower case, such as '.tif'."""
    path = image.partition('?')[0].partition('#')[0] if is_url(image) else image
    return PurePosixPath(path).suffix.lower()


def open_header(path: Path, are_labels: bool = False) -> ImageSource:
    """Open an image for its size and georeference, without decoding it; its pixels may be wrong.

    Raises:
        UserError: If the file cannot be opened as an image.
    """

    def blank(name: str) -> np.ndarray:
        size = image_size(name)
        if size is None:
            raise UserError(f'{name} cannot be opened as an image: repair or remove it')
        return np.broadcast_to(np.uint8(0), size)

    return open_image(path, blank, are_labels=are_labels)
