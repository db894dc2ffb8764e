"""Masks of the pixels of an image that are predicted."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
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
from ..files.validity import box_of
from .placed_rasters import laid_over
from .read_features import Features, in_pixels, not_in_image, read_features

WGS84 = 'EPSG:4326'  # the system of GeoJSON files that name none (RFC 7946)


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
        scales = zip(box_of(mask), size, mask.shape, strict=True)
        self.box = Window(*(slice(s.start * n // m, -(-s.stop * n // m)) for s, n, m in scales))

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


class Polygons(Mask):
    """The pixels whose centers are in polygons, in pixels of the image."""

    def __init__(self, polygons: Sequence[Any], size: tuple[int, int]) -> None:
        import shapely

        self._tree = shapely.STRtree(polygons)
        left, top, right, bottom = shapely.total_bounds(polygons)
        self.box = Window.around((left, top, right, bottom), size).clipped(size)

    def read(self, window: Window) -> np.ndarray:
        import shapely
        from rasterio.features import rasterize
        from rasterio.transform import Affine

        rows, columns = window
        box = shapely.box(columns.start, rows.start, columns.stop, rows.stop)
        near = self._tree.geometries[self._tree.query(box)]
        if not len(near):
            return np.zeros(window.size, bool)
        place = Affine.translation(columns.start, rows.start)
        inside = rasterize(near, window.size, transform=place, dtype=np.uint8)
        return inside.astype(bool)


def polygons_of(path: str | Path, image: ImageSource) -> Polygons:
    """Return the polygons of a GeoJSON file or GeoPackage in an image.

    They are converted to the reference system of the image. The coordinates of a file that names no
    system are map coordinates of the image or, if they lie outside, degrees. For an image without a
    reference system, they are pixels of the full image.

    Raises:
        UserError: If the file cannot be used, or has no polygon in the image.
    """
    features = read_features(path)
    inside = _placed(features, image)
    if not inside and features.crs is None and image.georeference.get('crs') is not None:
        with suppress(UserError):  # the coordinates are no degrees
            inside = _placed(replace(features, crs=WGS84), image)
    if not inside:
        raise not_in_image(image, features)
    return Polygons(inside, image.shape[:2])


def _placed(features: Features, image: ImageSource) -> list[Any]:
    """Return the polygons that overlap an image, in its pixels."""
    import shapely

    polygons = in_pixels(features, image).geometries
    # After a conversion, rounding may let a polygon cross itself; clip_by_rect accepts this.
    return [p for p in polygons if shapely.clip_by_rect(p, 0, 0, *image.shape[1::-1]).area]
