"""Masks of the pixels of an image that are predicted."""

import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from ..environment import require
from ..errors import UserError
from .geometry import Window, overlap
from .image_source import ImageSource
from .image_views import ImageView
from .overview import overview


class Mask(ABC):
    """The pixels of an image that are predicted.

    Attributes:
        box: A window that holds all of them.
    """

    box: Window

    @abstractmethod
    def read(self, window: Window) -> np.ndarray:
        """Return which pixels of a window are predicted, (h, w) bool."""


class MaskedImage(ImageView):
    """An image whose pixels outside a mask count as pixels without data."""

    def __init__(self, source: ImageSource, mask: Mask, described: Any) -> None:
        super().__init__(source, described)
        self.mask, self.has_gaps = mask, True

    def _valid(self, window: Window) -> np.ndarray | None:
        is_wanted, has_data = self.mask.read(window), self.source.valid(window)
        return is_wanted if has_data is None else is_wanted & has_data

    def valid_box(self) -> Window:
        boxes = zip(self.source.valid_box(), self.mask.box, strict=True)
        return Window(*(overlap(a, b) for a, b in boxes))

    def _read(self, window: Window) -> np.ndarray:
        return self.source.read(window)


class Stretched(Mask):
    """A small mask (h, w) bool that is stretched over the image (H, W)."""

    def __init__(self, mask: np.ndarray, size: tuple[int, int]) -> None:
        self._mask, self._size = mask, size
        places = [np.flatnonzero(mask.any(axis)) for axis in (1, 0)]
        self.box = Window(slice(0, 0), slice(0, 0))
        if len(places[0]):
            scales = zip(places, size, mask.shape, strict=True)
            spans = (slice(int(i[0]) * n // m, -(-(int(i[-1]) + 1) * n // m)) for i, n, m in scales)
            self.box = Window(*spans)

    def read(self, window: Window) -> np.ndarray:
        rows, columns = (
            (np.arange(span.start, span.stop) * 2 + 1) * m // (2 * n)  # the centers of pixels
            for span, m, n in zip(window, self._mask.shape, self._size, strict=True)
        )
        return self._mask[np.ix_(rows, columns)]


class WarpedMask(Mask):
    """A mask in a file with a reference system, placed on the grid of an image."""

    def __init__(self, path: str | Path, image: ImageSource) -> None:
        require('rasterio')
        import rasterio
        from rasterio.enums import Resampling
        from rasterio.vrt import WarpedVRT
        from rasterio.warp import transform_bounds

        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            self._file = rasterio.open(Path(path).resolve(), driver='GTiff')
        georeference, (height, width) = image.georeference, image.shape[:2]
        grid = dict(crs=georeference['crs'], transform=georeference['transform'])
        grid |= dict(height=height, width=width, resampling=Resampling.nearest)
        self._warped = WarpedVRT(self._file, **grid)
        west, south, east, north = transform_bounds(
            self._file.crs, georeference['crs'], *self._file.bounds
        )
        corners = (west, north), (east, north), (west, south), (east, south)
        x, y = zip(*(~georeference['transform'] * corner for corner in corners), strict=True)
        box = min(x), min(y), max(x), max(y)
        self.box = Window.around(box, image.shape[:2]).clipped(image.shape[:2])

    def read(self, window: Window) -> np.ndarray:
        from rasterio.windows import Window as RasterWindow

        values = self._warped.read(1, window=RasterWindow.from_slices(*window))
        has_data = self._warped.read_masks(1, window=RasterWindow.from_slices(*window))
        return (values != 0) & (has_data != 0)


def mask_of(path: str | Path, mask: ImageSource, image: ImageSource) -> Mask:
    """Return the mask of an image from a file, whose pixels other than 0 are predicted.

    If both have a reference system, the mask is placed by it. Otherwise, it covers the whole image,
    and may have fewer pixels.

    Raises:
        UserError: If the mask does not fit the image, or is empty there.
    """
    systems = [source.georeference.get('crs') for source in (mask, image)]
    if None not in systems:
        found: Mask = WarpedMask(path, image)
    else:
        (h, w), (H, W) = mask.shape[:2], image.shape[:2]
        if abs(h * W - w * H) > max(H, W):
            raise UserError(
                f'the mask {path} has {w}x{h} pixels, which is not the shape of {image.name} with '
                f'{W}x{H} pixels: name a mask of the same image'
            )
        small = overview((h, w), lambda window: mask.read(window).any(2), max(h, w))
        found = Stretched(small, (H, W))
    if not all(found.box.size):
        raise UserError(f'the mask {path} has no pixel other than 0 in {image.name}')
    return found
