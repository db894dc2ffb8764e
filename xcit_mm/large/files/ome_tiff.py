"""OME-TIFF: channels in the pages of one file or of several files, with levels."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from ...base.environment import quiet, require
from ...base.errors import UserError, one_line
from ...base.files import open_regular, parse_xml
from ...base.geometry import Window
from ...data.tiff.file_headers import require_modest_tiff
from .image_source import (
    FileSource,
    ReadOptions,
    require_few_channels,
    require_level,
    state_of_file,
)
from .pixel_sizes import MICROMETERS, PixelSize, in_micrometers, pixel_size_of
from .rasters import GdalImage

OME = tuple(f'.ome{suffix}' for suffix in ('.tif', '.tiff', '.btf', '.tf8'))
MAX_PLANES = 2**16  # of an image
PLANES = 'SizeC', 'SizeZ', 'SizeT'
NAMES = 'MetadataFile', 'FileName'  # attributes of elements that name files


class Page(NamedTuple):
    """A page of a TIFF file: where its directory begins, and its number of channels."""

    path: Path
    offset: int
    channels: int


class OmeTiff(FileSource):
    """The first image of an OME-TIFF file, at a level; 0 is the full image.

    tifffile finds the pages, and GDAL reads windows of them. The channels are in the order of the
    file.

    Raises:
        UserError: If the file has no metadata of OME or names files in other folders, or if the
            image has several sections or times.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        require('tifffile')
        self._arguments = path, options
        channels, _, nodata, level, _ = options
        pixels, levels = _structure(path)
        sizes = [size for size, _ in levels]
        require_level(str(path), level, sizes)
        if level and nodata is None:  # the pages of levels may lack it
            values = _opened(path, levels[0][1][0], None, None).nodata
            nodata = values[0] if values else None
        pages = levels[level][1]
        count = sum(page.channels for page in pages)
        require_few_channels(str(path), count)  # before each page is opened
        self._files = tuple(dict.fromkeys([path, *(page.path for page in pages)]))
        self._pages = _open_pages(path, pages, channels, nodata)
        first = self._pages[0]
        count = first.shape[2] if len(pages) == 1 else count
        super().__init__(str(path), path, (*sizes[level], count), first.dtype, channels, nodata)
        self.nodata, self.has_gaps = first.nodata, first.has_gaps
        self.orientation = first.orientation
        self.max_rows, self.max_value = first.max_rows, first.max_value
        self._use_level(level, sizes)
        if (size := _pixel_size(pixels)) is not None:
            self.pixel_size = size.reduced(sizes[0], sizes[level])

    def _file_state(self) -> list:
        return [state_of_file(path) for path in self._files]

    def _read(self, window: Window) -> np.ndarray:
        pixels = [image.read(window) for image in self._pages]
        return np.concatenate(pixels, axis=2)[..., : self.channels]

    def _valid(self, window: Window) -> np.ndarray | None:
        return super()._valid(window) if len(self._pages) > 1 else self._pages[0].valid(window)


def is_ome(path: Path) -> bool:
    """Return whether a file is named as an OME-TIFF file."""
    return path.name.lower().endswith(OME)


def _structure(path: Path) -> tuple[Element, list[tuple[tuple[int, int], list[Page]]]]:
    """Return the metadata of the first image, and the size and the pages of each level."""
    from tifffile import TiffFile

    with quiet(), TiffFile(path) as file:  # tifffile logs oddities of a file
        require_modest_tiff(path, file.filehandle)
        pixels = _metadata(path, file.pages.first.description)
        series = file.series[0]
        if others := {
            a: n
            for a, n in zip(series.axes, series.shape, strict=True)
            if a not in 'CSYX' and n > 1
        }:
            raise UserError(
                f'{path} has images along the axes {others}, but one image is needed: copy one of '
                'them to a file of its own'
            )
        return pixels, [(_size(level), _pages(path, level)) for level in series.levels]


def _metadata(path: Path, text: str) -> Element:
    """Return the metadata of the first image, after a check of all files that it names."""
    root = parse_xml(text.encode())
    for element in root.iter():
        for name in (n for n in map(element.get, NAMES) if n is not None):
            if Path(name).name != name or '\\' in name or not name.strip('.'):
                raise _elsewhere(path, name)
            if (file := path.resolve().with_name(name)).exists():
                open_regular(file).close()
    images = [element for element in root.iter() if element.tag.rpartition('}')[2] == 'Pixels']
    if not images:
        raise UserError(f'{path} has no image in its metadata of OME: name the file that has it')
    if any(math.prod(int(image.get(n)) for n in PLANES) > MAX_PLANES for image in images):
        raise UserError(f'{path} claims more than {MAX_PLANES} planes: copy some to another file')
    return images[0]


def _size(level: Any) -> tuple[int, int]:
    return tuple(level.shape[level.axes.index(axis)] for axis in 'YX')


def _pages(path: Path, level: Any) -> list[Page]:
    pages = []
    for page in level.pages:
        if page is None:
            raise UserError(f'{path}: a channel is missing, because a file is cut off or missing')
        file = Path(page.parent.filehandle.path)
        if file.parent != path.resolve().parent:
            raise _elsewhere(path, str(file))
        # A page of RGB is one page with three channels.
        pages.append(Page(file, page.offset, level.keyframe.samplesperpixel))
    return pages


def _elsewhere(path: Path, name: str) -> UserError:
    return UserError(
        f'{path} names the file {one_line(name)!r}, but its files have to be in its folder: '
        'remove the folder from the name'
    )


def _open_pages(
    path: Path, pages: Sequence[Page], channels: int | None, nodata: float | None
) -> list[GdalImage]:
    """Open the pages that hold the first channels."""
    # Only one page can say which of its bands are colors, and which is the opacity.
    of_page = channels if len(pages) == 1 else None
    before = accumulate((page.channels for page in pages), initial=0)
    return [
        _opened(path, page, of_page, nodata)
        for page, first in zip(pages, before, strict=False)
        if channels is None or first < channels
    ]


def _opened(path: Path, page: Page, channels: int | None, nodata: float | None) -> GdalImage:
    import rasterio

    with open_regular(page.path) as file:
        tags = require_modest_tiff(path, file, page.offset)
    name = f'GTIFF_DIR:off:{page.offset}:{page.path.resolve()}'
    open_file = partial(rasterio.open, name, driver='GTiff')
    return GdalImage(str(path), None, open_file, ReadOptions(channels, nodata=nodata), tags)


def _pixel_size(pixels: Element) -> PixelSize | None:
    names = [f'PhysicalSize{axis}' for axis in 'YX']
    units = (pixels.get(f'{name}Unit', MICROMETERS) for name in names)
    return pixel_size_of(*map(in_micrometers, map(pixels.get, names), units))
