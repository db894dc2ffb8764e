"""Masks of the pixels of an image that are predicted."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, reason
from ..files import open_regular
from ..weights.cache import is_url
from .geometry import Window, overlap
from .image_source import PREDICTED, ImageSource
from .image_views import ImageView
from .no_data import has_data
from .open_image import ARRAYS, errors_of, open_image
from .png_labels import PngLabels
from .rasters import LABELS, RASTERS, GdalImage


class Mask(ABC):
    """The pixels of an image that are predicted.

    Attributes:
        box: A window that holds all of them.
    """

    box: Window

    @abstractmethod
    def read(self, window: Window) -> np.ndarray:
        """Return which pixels of a window are predicted, (h, w) bool."""

    def require_unchanged(self, use: str) -> None:  # noqa: B027  most masks are in memory
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

    def require_unchanged(self, use: str = PREDICTED) -> None:
        super().require_unchanged(use)
        self.mask.require_unchanged(use)

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


class WarpedMask(Mask):
    """A mask with a reference system, placed on the grid of an image."""

    def __init__(self, mask: GdalImage, image: ImageSource) -> None:
        from rasterio.transform import array_bounds
        from rasterio.warp import transform_bounds

        self._mask, size = mask, image.shape[:2]
        crs, transform = (image.georeference[name] for name in ('crs', 'transform'))
        grid = dict(crs=crs, transform=transform, height=size[0], width=size[1])
        try:
            self._warped = mask.warped(**grid)
            of_mask = mask.georeference
            bounds = array_bounds(*mask.shape[:2], of_mask['transform'])
            west, south, east, north = transform_bounds(of_mask['crs'], crs, *bounds)
        except Exception as error:  # rasterio and GDAL raise many kinds
            raise UserError(
                f'the mask {mask.name} cannot be placed on {image.name} ({reason(error)}): '
                'reproject it with gdalwarp -t_srs'
            ) from None
        corners = (west, north), (east, north), (west, south), (east, south)
        x, y = zip(*(~transform * corner for corner in corners), strict=True)
        box = min(x), min(y), max(x), max(y)
        self.box = Window.around(box, size).clipped(size)

    def read(self, window: Window) -> np.ndarray:
        values, has_data = self._warped(window)
        return (values != 0) & (has_data != 0)

    def require_unchanged(self, use: str) -> None:
        self._mask.require_unchanged(use)


def open_mask(path: str | Path) -> ImageSource:
    """Open the file of a mask.

    Raises:
        UserError: If it is not a TIFF, JPEG 2000, PNG or NumPy file on this machine with one band.
    """
    suffix = Path(path).suffix.lower()
    if is_url(str(path)) or suffix not in (*RASTERS, *LABELS, *ARRAYS):
        raise UserError(
            f'{path} cannot be used as a mask: name a TIFF, JPEG 2000, PNG or NumPy file on this '
            'machine'
        )
    if suffix in LABELS:
        with errors_of(path):
            open_regular(Path(path).expanduser()).close()
            mask: ImageSource = PngLabels(Path(path).expanduser())
    else:
        mask = open_image(path, str, are_labels=True)  # which reads all of these by windows
    if mask.shape[2] != 1:
        raise UserError(f'the mask {path} has {mask.shape[2]} bands: copy one to another file')
    return mask


def mask_of(mask: ImageSource, image: ImageSource) -> Mask:
    """Return the pixels of an image for which a mask has values other than 0 and no-data.

    If both have a reference system, the mask is placed by it. Otherwise, it covers the whole image,
    and may have fewer pixels.

    Raises:
        UserError: If the mask does not fit the image, or is empty there.
    """
    if None not in [source.georeference.get('crs') for source in (mask, image)]:
        found: Mask = WarpedMask(mask, image)
    else:
        (h, w), (H, W) = mask.shape[:2], image.shape[:2]
        if abs(h * W - w * H) > max(H, W):
            raise UserError(
                f'the mask {mask.name} has {w}x{h} pixels, which is not the shape of {image.name} '
                f'with {W}x{H} pixels: name a mask of the same image'
            )
        found = Stretched(_selected(mask), (H, W))
    if not all(found.box.size):
        raise UserError(
            f'the mask {mask.name} has no pixel other than 0 in {image.name}, or lies elsewhere on '
            'the map'
        )
    return found


def _selected(mask: ImageSource) -> np.ndarray:
    """Return which pixels of a mask have values other than 0 and no-data, (h, w) bool."""
    selected = np.zeros(mask.shape[:2], bool)
    for window in mask.windows():
        values = mask.read(window)
        chosen = (values != 0)[..., 0]
        if mask.file_nodata is not None:
            chosen &= has_data(values, mask.file_nodata)
        selected[tuple(window)] = chosen
    return selected
