"""What the bands of a TIFF file mean, for all code that reads them; see docs/your_data.md.

GDAL reads the pixels, from a file, window by window, or from memory.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import UserError, one_line
from .file_headers import Tags, require_modest_tiff

DRIVER = 'GTiff'  # the only driver of GDAL that reads the files of a dataset
NAME = 'image.tif'  # of a file in memory, in messages of GDAL
MAX_VALUES = 2**30  # of an image or a block; a small file can claim any size
RGB = 'red', 'green', 'blue'
# Photometric tags of gray, RGB and palettes. GDAL converts most others to RGB.
WHITE_IS_0, LAST_KNOWN_COLORS = 0, 3
OF_DATASET = 'IMAGE_STRUCTURE'  # where GDAL says how pixels are stored
PAGE = re.compile(r'Page (\d+) \((.*)\)')  # as GDAL describes it
OME = '<OME'
USED_BITS = re.compile(r'<Pixels[^<>]*\sSignificantBits="(\d{1,2})"')


class Bands(NamedTuple):
    """The bands of a file that are the channels of an image, in this order.

    Attributes:
        numbers: The number of each band in the file, from 1.
        dtype: The NumPy type of the image.
        max_value: The largest value that the type or the header of the file allows.
        alpha: The number of the opacity band, which is not a channel, or None.
        palette: The color (n, 3) of each value, uint8, if the only band holds numbers of colors.
        is_inverted: Whether 0 is white.
    """

    numbers: tuple[int, ...]
    dtype: np.dtype
    max_value: int | None
    alpha: int | None = None
    palette: np.ndarray | None = None
    is_inverted: bool = False

    @property
    def channels(self) -> int:
        return len(self.numbers) if self.palette is None else 3

    def image(self, values: np.ndarray) -> np.ndarray:
        """Return the image (h, w, channels) of values (bands, h, w) that GDAL has read."""
        if self.palette is not None:
            return self.palette[values[0]]
        image = np.moveaxis(values, 0, -1)
        return self.dtype.type(self.max_value) - image if self.is_inverted else image


def stored_bands(name: str, file: Any) -> Bands:
    """Return all bands of a dataset of rasterio, with the values that are stored.

    Raises:
        UserError: If the bands have several types.
    """
    if file.dtypes.count(file.dtypes[0]) != file.count:
        raise UserError(f'{name}: its bands have the types {", ".join(file.dtypes)}: use one type')
    dtype = np.dtype(file.dtypes[0])
    if dtype.kind not in 'iu':
        return Bands(file.indexes, dtype, None)
    used = USED_BITS.search(_description(file))
    bits = int(file.tags(1, ns=OF_DATASET).get('NBITS', 0)) or int(used[1] if used else 0)
    largest = np.iinfo(dtype).max
    return Bands(file.indexes, dtype, min(largest, 2**bits - 1) if bits else largest)


def color_bands(name: str, file: Any, tags: Tags) -> Bands:
    """Return the bands of a dataset of rasterio as an RGB model reads them, without the opacity.

    The bands that the file declares as red, green and blue come first; without such bands, the
    first ones do. A gray image has one band. Colors are not multiplied by the opacity.

    Raises:
        UserError: If the colors are in a space that GDAL does not convert to RGB, or the channels
            are pages.
    """
    bands, kinds = stored_bands(name, file), [kind.name for kind in file.colorinterp]
    if (tags.photometric > LAST_KNOWN_COLORS and not {*RGB} <= {*kinds}) or (
        'SOURCE_COLOR_SPACE' in file.tags(ns=OF_DATASET)
        and tags.orientation > 1  # GDAL applies it only in part
    ):
        raise UserError(
            f'{name} has colors (photometric {tags.photometric}, orientation {tags.orientation}) '
            'that cannot be read: convert it to RGB'
        )
    if len(kinds) == 1 and file.subdatasets and OME in _description(file):
        raise UserError(
            f'{name} is an OME-TIFF file whose channels are pages: predict it with --stream, or '
            'write its channels as the bands of one page'
        )
    numbers, alpha = color_order(kinds)
    is_inverted = tags.photometric == WHITE_IS_0 and bands.max_value is not None
    if kinds[0] == 'palette' and not is_inverted:
        palette = np.zeros((np.iinfo(bands.dtype).max + 1, 3), np.uint8)
        colors = file.colormap(1)
        palette[[*colors]] = [color[:3] for color in colors.values()]
        return Bands((1,), palette.dtype, 255, alpha, palette)
    return bands._replace(numbers=numbers, alpha=alpha, is_inverted=is_inverted)


def color_order(kinds: Sequence[str]) -> tuple[tuple[int, ...], int | None]:
    """Return the numbers, from 1, of the channels of an RGB image, and of its opacity or None.

    Args:
        kinds: What each band is, in GDAL's words.
    """
    alpha = 1 + kinds.index('alpha') if 'alpha' in kinds[1:] else None
    first = [1 + kinds.index(color) for color in RGB] if {*RGB} <= {*kinds} else []
    others = (n for n in range(1, len(kinds) + 1) if n not in (*first, alpha))
    return (*first, *others), alpha


def _description(file: Any) -> str:
    return file.tags().get('TIFFTAG_IMAGEDESCRIPTION', '')


@contextmanager
def opened_tiff(data: bytes) -> Iterator[tuple[Any, Tags]]:
    """Open the bytes of a TIFF file as a dataset of rasterio, and read tags that GDAL ignores.

    Raises:
        UserError: If the file is damaged, even if only the ``with`` block notices it, or would take
            GDAL minutes to open.
    """
    import rasterio
    from rasterio.errors import RasterioError
    from rasterio.io import MemoryFile

    tags = require_modest_tiff('it', io.BytesIO(data))
    alone = rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR', GDAL_NUM_THREADS=1)
    try:
        with alone, warnings.catch_warnings(), MemoryFile(data, filename=NAME) as memory:
            warnings.simplefilter('ignore')  # about images without a georeference
            with memory.open(driver=DRIVER) as file:
                yield file, tags
    except (RasterioError, ValueError, TypeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first error of GDAL
            cause = cause.__cause__
        raise UserError(f'it cannot be read ({one_line(str(cause))})') from None


def read_bands(file: Any, numbers: tuple[int, ...]) -> np.ndarray:
    """Return whole bands (bands, H, W) of a dataset of rasterio.

    Raises:
        UserError: If they, or the blocks of the file, would fill the memory.
    """
    _require_small(file, len(numbers))
    return file.read(list(numbers))


def page_names(file: Any) -> list[str]:
    """Return GDAL's names of the pages that are the bands of a dataset of rasterio.

    If the first page has several bands, only this page is read. Pages of another size are others,
    such as thumbnails.
    """
    # Metadata in the file can name other files as its pages, so only the numbers count.
    described = file.tags(ns='SUBDATASETS') if file.count == 1 else {}
    pages = map(PAGE.fullmatch, described.values())
    size = f'{file.width}P x {file.height}L x 1B'
    numbers = sorted(int(page[1]) for page in pages if page and page[2] == size)
    return [f'GTIFF_DIR:{n}:{file.name}' for n in numbers]


def read_pages(file: Any, names: list[str]) -> np.ndarray:
    """Return pages (pages, H, W) of one band each.

    Raises:
        UserError: If they differ in size or type, or would fill the memory.
    """
    import rasterio

    _require_small(file, len(names))
    expected = file.shape, file.dtypes
    pages = np.empty((len(names), *file.shape), file.dtypes[0])
    for name, page in zip(names, pages, strict=True):
        with rasterio.open(name, driver=DRIVER) as opened:
            if (opened.shape, opened.dtypes) != expected:
                raise UserError('it has pages that differ in size, type or number of bands')
            opened.read(1, out=page)
    return pages


def _require_small(file: Any, count: int) -> None:
    rows, columns = file.block_shapes[0]
    if max(file.height * file.width * count, rows * columns * file.count) > MAX_VALUES:
        raise UserError(
            f'it has more than a billion values ({count} bands of {file.width}x{file.height} '
            f'pixels in blocks of {columns}x{rows})'
        )


def turns_of(orientation: int) -> tuple[bool, bool, bool]:
    """Return whether to transpose an image, and then to flip its rows and its columns.

    ``orientation`` is the EXIF orientation, 1 to 8.
    """
    return orientation > 4, orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn an image (H, W, C) as its EXIF orientation says."""
    is_transposed, flips_rows, flips_columns = turns_of(orientation)
    image = image.swapaxes(0, 1) if is_transposed else image
    return image[:: -1 if flips_rows else 1, :: -1 if flips_columns else 1]
