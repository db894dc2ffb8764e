"""The choice of the library that reads an image by windows.

rasterio reads TIFF files (BigTIFF, tiled, pyramidal, GeoTIFF, COG, the pages of OME-TIFF, mosaics
of files, files by address) and JPEG 2000. openslide reads the formats of slide scanners, zarr reads
Zarr and OME-Zarr, and NumPy reads its own format. docs/scenes.md compares these libraries with
others.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...base.files import open_regular
from ...base.http import is_url
from ...data.tiff.tiff_bands import turns_of
from ...data.transforms.decode import size_of
from .arrays import Array, mapped
from .image_source import ImageSource, ReadOptions, errors_of, require_level
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
    options = ReadOptions(channels, are_labels, nodata, level or 0)
    source = _upright(image, read, options)
    if resolution is None:
        return source
    if best := level_for(source, resolution):
        source = _upright(image, read, options._replace(level=best))
    return at_resolution(source, resolution)


def _upright(
    image: str | Path | np.ndarray | Sequence[str | Path],
    read: Callable[[str], np.ndarray],
    options: ReadOptions,
) -> ImageSource:
    """Open an image at a level, in its orientation for display."""
    if isinstance(image, np.ndarray):
        source: ImageSource = Array(image, 'the array', None, options.channels, options.nodata)
    elif isinstance(image, (str, Path)):
        source = _opened(image, read, options)
    else:
        source = open_mosaic([Path(path).expanduser() for path in image], options)
    if source.level != options.level:  # an array has only one level
        require_level(source.name, options.level, source.levels)
    if source.orientation == 1:
        return source
    return TurnedImage(source, Symmetry(*turns_of(source.orientation)))


def _opened(
    image: str | Path, read: Callable[[str], np.ndarray], options: ReadOptions
) -> ImageSource:
    path, suffix = Path(image).expanduser(), suffix_of(str(image))
    of_array = options.channels, options.nodata
    if is_url(str(image)):
        if suffix in REMOTE:
            with errors_of(image):
                return RemoteRaster(str(image), options)
        return Array(read(str(image)), str(image), None, *of_array)
    if suffix in BY_WINDOWS or (options.are_labels and suffix in LABELS) or is_zarr(path):
        with errors_of(image):
            return _by_windows(path, options)
    return Array(read(str(image)), str(image), path, *of_array)


def _by_windows(path: Path, options: ReadOptions) -> ImageSource:
    """Open a file or a folder on this machine of which a library reads windows."""
    suffix = path.suffix.lower()
    if is_zarr(path):
        return ZarrImage(path, options)
    open_regular(path).close()
    if suffix in SLIDES:
        return Slide(path, options)
    if is_ome(path) and not options.are_labels:
        return OmeTiff(path, options)
    if suffix in VIRTUAL:
        return open_virtual(path, options)
    if suffix in ARRAYS:
        return mapped(path, options.channels, options.nodata)
    return Raster(path, options)


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
