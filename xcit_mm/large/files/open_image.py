"""The choice of the library that reads an image by windows.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG, the pages of OME-TIFF, mosaics
of files, files by address) and JPEG 2000. openslide reads the formats of slide scanners, zarr reads
Zarr and OME-Zarr, and NumPy reads its own format. docs/scenes.md compares these libraries with
others.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...base.files import open_regular
from ...base.http import is_url
from ...data.tiff.tiff_bands import turns_of
from ...data.transforms.decode import size_of
from .arrays import Array, mapped
from .image_source import ImageSource, errors_of
from .levels import require_level
from .mosaics import open_mosaic
from .ome_tiff import OmeTiff, is_ome
from .rasters import LABELS, RASTERS, Raster
from .remote_rasters import REMOTE, RemoteRaster
from .resampled_image import at_resolution, level_for
from .slides import SLIDES, Slide
from .symmetries import Symmetry, TurnedImage
from .virtual_rasters import VIRTUAL, open_virtual
from .zarr_images import ZarrImage, is_zarr

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
        UserError: If the file does not exist or cannot be opened as an image, or has no such level
            or no resolution.
    """
    options = read, channels, are_labels, nodata
    source = _upright(image, *options, level or 0)
    if resolution is None:
        return source
    if best := level_for(source, resolution):
        source = _upright(image, *options, best)
    return at_resolution(source, resolution)


def _upright(image: str | Path | np.ndarray | Sequence[str | Path], *options: Any) -> ImageSource:
    """Open an image at a level, in its orientation for display."""
    _, channels, _, nodata, level = options
    if isinstance(image, np.ndarray):
        require_level('the array', level, [image.shape[:2]])
        source: ImageSource = Array(image, 'the array', None, channels, nodata)
    elif isinstance(image, (str, Path)):
        source = _opened(image, *options)
    else:
        source = open_mosaic([Path(path).expanduser() for path in image], channels, nodata, level)
    if source.orientation == 1:
        return source
    return TurnedImage(source, Symmetry(*turns_of(source.orientation)))


def _opened(
    image: str | Path,
    read: Callable[[str], np.ndarray],
    channels: int | None,
    are_labels: bool,
    nodata: float | None,
    level: int,
) -> ImageSource:
    path, suffix, is_remote = Path(image).expanduser(), suffix_of(str(image)), is_url(str(image))
    readers = REMOTE if is_remote else BY_WINDOWS + (tuple(LABELS) if are_labels else ())
    is_folder = not is_remote and is_zarr(path)
    if suffix not in readers and not is_folder:
        pixels = read(str(image))
        require_level(str(image), level, [pixels.shape[:2]])
        return Array(pixels, str(image), None if is_remote else path, channels, nodata)
    with errors_of(image):
        if is_remote:
            return RemoteRaster(str(image), channels, are_labels, nodata, level)
        if is_folder:
            return ZarrImage(path, channels, nodata, level)
        open_regular(path).close()
        if suffix in SLIDES:
            return Slide(path, nodata, level)
        if is_ome(path) and not are_labels:
            return OmeTiff(path, channels, nodata, level)
        if suffix in VIRTUAL:
            return open_virtual(path, channels, nodata, level)
        if suffix in ARRAYS:
            source = mapped(path, channels, nodata)
            require_level(source.name, level, source.levels)
            return source
        return Raster(path, channels, are_labels, nodata, level)


def open_header(path: str | Path, are_labels: bool = False) -> ImageSource:
    """Open an image for its size and georeference, without decoding it; its pixels may be wrong.

    Raises:
        UserError: If the file cannot be opened as an image.
    """

    def blank(name: str) -> np.ndarray:
        with errors_of(name), open_regular(Path(name)) as file:
            return np.broadcast_to(np.uint8(0), size_of(file, path=Path(name))[::-1])

    return open_image(path, blank, are_labels=are_labels)


def image_size(path: str) -> tuple[int, int] | None:
    """Return (H, W) of an image file, or None if its header cannot be read."""
    try:
        return open_header(path).shape[:2]
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
