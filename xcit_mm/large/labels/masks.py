"""Masks of the pixels of an image that are predicted."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window, overlap
from ...base.http import is_url
from ..files.image_source import ImageSource
from ..files.image_views import ImageView
from ..files.no_data import has_data
from ..files.open_image import ARRAYS, open_image
from ..files.rasters import LABELS, RASTERS
from .placed_rasters import laid_over


class Mask(ABC):
    """The pixels of an image that are predicted.

    Attributes:
        box: A window that holds all of them.
    """

    box: Window

    @abstractmethod
    def read(self, window: Window) -> np.ndarray:
        """Return which pixels of a window are predicted, (h, w) bool."""

    def require_unchanged(self) -> None:  # noqa: B027  most masks are in memory
        """Raise a UserError if a file that is still read has changed."""


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

    def require_unchanged(self) -> None:
        super().require_unchanged()
        self.mask.require_unchanged()

    def _read(self, window: Window) -> np.ndarray:
        return self.source.read(window)


class Stretched(Mask):
    """A small mask (h, w) bool that is stretched over the image (H, W).

    Attributes:
        share: The share of the image, 0..1.
    """

    def __init__(self, mask: np.ndarray, size: tuple[int, int]) -> None:
        self._mask, self._size = mask, size
        self.share = float(mask.mean())
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


class PlacedMask(Mask):
    """The pixels of an image for which a raster with as many pixels has values other than 0."""

    def __init__(self, raster: ImageSource) -> None:
        self._raster, self.box = raster, raster.valid_box()

    def read(self, window: Window) -> np.ndarray:
        return _selected(self._raster, window)

    def require_unchanged(self) -> None:
        self._raster.require_unchanged()


def open_mask(path: str | Path) -> ImageSource:
    """Open the file of a mask.

    Raises:
        UserError: If it is not a TIFF, JPEG 2000, PNG or NumPy file on this machine with one band.
    """
    if is_url(str(path)) or Path(path).suffix.lower() not in (*RASTERS, *LABELS, *ARRAYS):
        raise UserError(
            f'{path} cannot be used as a mask: name a TIFF, JPEG 2000, PNG or NumPy file on this '
            'machine'
        )
    mask = open_image(path, str, are_labels=True)  # which reads all of these by windows
    if mask.shape[2] != 1:
        raise UserError(f'the mask {path} has {mask.shape[2]} bands: copy one to another file')
    return mask


def mask_of(mask: ImageSource, image: ImageSource) -> Mask:
    """Return the pixels of an image for which a mask has values other than 0 and no-data.

    If both have a place on the map, the mask is placed by it. Otherwise, it covers the whole image,
    and may have fewer pixels.

    Raises:
        UserError: If the mask does not fit the image, or lies elsewhere.
    """
    placed = laid_over(mask, image)
    if None not in (mask.place.transform, image.place.transform):
        return PlacedMask(placed)
    (h, w), (H, W) = mask.shape[:2], image.shape[:2]
    if abs(h * W - w * H) > max(H, W):
        raise UserError(
            f'the mask {mask.name} has {w}x{h} pixels, which is not the shape of {image.name} '
            f'with {W}x{H} pixels: name a mask of the same image'
        )
    selected = np.zeros((h, w), bool)
    for window in mask.windows():
        selected[tuple(window)] = _selected(mask, window)
    return Stretched(selected, (H, W))


def _selected(mask: ImageSource, window: Window) -> np.ndarray:
    """Return which pixels of a mask have values other than 0 and no-data, (h, w) bool."""
    values, valid = mask.read(window), mask.valid(window)
    chosen = (values != 0)[..., 0]
    if mask.file_nodata is not None:
        chosen &= has_data(values, mask.file_nodata)
    return chosen if valid is None else chosen & valid
