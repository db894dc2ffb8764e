"""What the headers of images say about their pixels: the size, the bands and the type."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import UserError
from ...base.files import open_regular
from ..tiff.file_headers import TIFF, require_modest_tiff
from ..tiff.places import shown_orientation
from ..tiff.tiff_bands import DRIVER, RGB, color_order, page_names
from ..transforms.decode import Size, size_of

EIGHT_BITS = np.dtype(np.uint8)


class Header(NamedTuple):
    """What the header of an image says.

    Attributes:
        size: The width and the height, as it is shown.
        bands: The number of bands.
        colors: The number of bands that are not opacity.
        dtype: The type of the values; other files than TIFF are read with 8 bits.
        rgb: The bands, from 0, that the file declares as red, green and blue, or None.
        is_tiff: Whether it is a TIFF file.
    """

    size: Size
    bands: int = 3
    colors: int = 3
    dtype: np.dtype = EIGHT_BITS
    rgb: tuple[int, ...] | None = None
    is_tiff: bool = False

    @property
    def is_rgb(self) -> bool:
        """Whether a model of RGB images loses nothing of it."""
        return self.colors in (1, 3) and self.dtype == EIGHT_BITS


def read_header(path: Path, annotated: Size) -> Header:
    """Read the header of an image whose labels have the ``annotated`` size."""
    with open_regular(path) as file:
        start = file.read(2)
        file.seek(0)
        if start not in TIFF:
            return Header(size_of(file, annotated, path))
        tags = require_modest_tiff(path, file)
    import rasterio

    with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR'), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about images without a georeference
        with rasterio.open(path, driver=DRIVER) as file:
            kinds = [kind.name for kind in file.colorinterp]
            pages, (numbers, _) = page_names(file), color_order(kinds)
            is_turned = shown_orientation(tags.orientation, path) > 4
            size = (file.height, file.width) if is_turned else (file.width, file.height)
            bands = len(pages) if len(pages) > 1 else file.count
            colors = len(pages) if len(pages) > 1 else len(numbers)
            rgb = tuple(n - 1 for n in numbers[:3]) if {*RGB} <= {*kinds} else None
            return Header(size, bands, colors, np.dtype(file.dtypes[0]), rgb, is_tiff=True)


def common_bands(headers: Mapping[Path, Header]) -> Header | None:
    """Return the header of images that a model of RGB images cannot read, or None if it can.

    Raises:
        UserError: If the images have different bands.
    """
    others = {path: header for path, header in headers.items() if not header.is_rgb}
    if not others:
        return None
    (first, common), *_ = others.items()
    for path, header in headers.items():
        if (header.is_tiff, header.bands, header.dtype) != (True, common.bands, common.dtype):
            is_tiff = header.is_tiff
            kind = f'{header.bands} of {header.dtype}' if is_tiff else 'no bands of a TIFF file'
            raise UserError(
                f'{first} has {common.bands} bands of {common.dtype}, but {path} has {kind}: write '
                'all images as TIFF files with the same bands and type'
            )
    return common
