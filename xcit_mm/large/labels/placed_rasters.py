"""Rasters that are laid over an image by their places on the map: labels and masks."""

import math
from collections.abc import Sequence

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window, tiles, whole
from ...data.tiff.places import applied, are_laid_by_pixels, elsewhere, pixels_at
from ..files.image_source import ImageSource, SourceWithGaps
from ..files.image_views import ImageView

PART = 512  # pixels; the side of the parts that are placed at a time
MAX_READ = 2**24  # values of the raster that are read at a time
ROUNDING = 1e-6  # pixels; a place on the border of two pixels is in the second one, as in GDAL
SURVEY = 64  # places along each axis that are tested for an overlap


def laid_over(raster: ImageSource, image: ImageSource) -> ImageSource:
    """Return a raster whose pixels belong to the pixels of an image.

    If both have a place on the map, each pixel of the image gets the pixel of the raster at its
    center, and has no data beyond the raster. Otherwise, the raster is returned as it is.

    Raises:
        UserError: If they do not overlap, or if only one of them is placed by an affine transform.
    """
    places = raster.place, raster.shape[:2], image.place, image.shape[:2]
    if are_laid_by_pixels(*places):
        return raster
    if None not in (raster.place.transform, image.place.transform):
        placed = PlacedRaster(raster, image)
        if all(placed.valid_box().size):
            return placed
    raise UserError(elsewhere(raster.name, *places[:2], image.name, *places[2:]))


class PlacedRaster(SourceWithGaps, ImageView):
    """A raster on the pixels of an image with another grid or another reference system."""

    def __init__(self, raster: ImageSource, image: ImageSource) -> None:
        change = 'placed', *image.place.transform[:6], str(image.place.crs)
        super().__init__(raster, change, (*image.shape[:2], raster.shape[2]))
        self.georeference, self.has_gaps, self.max_rows = image.georeference, True, None
        self.file_nodata = raster.file_nodata
        self.level, self.levels, self.full_size = 0, (image.shape[:2],), image.shape[:2]
        self._conversions = _Conversion(image, raster), _Conversion(raster, image)
        self._box = self._find_box()

    def valid_box(self) -> Window:
        return self._box

    def _find_box(self) -> Window:
        """Return a window with all pixels that are on the raster, or an empty one without any."""
        (to_raster, to_image), size = self._conversions, self.shape[:2]
        survey = np.meshgrid(*(np.linspace(0.5, n - 0.5, SURVEY) for n in size[::-1]))
        columns, rows = (values.ravel() for values in survey)
        is_inside = _inside(*to_raster.convert_some(columns, rows), self.source.shape)
        border = to_image.convert_some(*_border(self.source.shape))
        if np.isfinite(border).all():
            (left, top), (right, bottom) = border.min(axis=1), border.max(axis=1)
            box = Window.around((left - 1, top - 1, right + 1, bottom + 1), size).clipped(size)
            rows, columns = (v[is_inside].astype(int) for v in (rows, columns))
            spans = zip(box, (rows, columns), strict=True)
            if all(((s.start <= v) & (v < s.stop)).all() for s, v in spans):
                return box
        elif not is_inside.any():
            return Window(slice(0, 0), slice(0, 0))
        return whole(size)  # a pole is on the raster, or places have no coordinates in the image

    def _read_both(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels of a window, and which of them are on the raster and have data."""
        pixels = np.zeros((*window.size, self.channels), self.dtype)
        valid = np.zeros(window.size, bool)
        parts = [*tiles(window, (PART, PART))]
        while parts:
            part = parts.pop(0)  # in order, for files that are decoded row by row
            centers = (np.arange(s.start, s.stop) + 0.5 for s in part)
            places = self._conversions[0].convert(*np.meshgrid(*[*centers][::-1]))
            if places is None:
                parts[:0] = _halves(part)
                continue
            columns, rows = places
            is_inside = _inside(columns, rows, self.source.shape)
            if not is_inside.any():
                continue
            indices = [np.floor(v[is_inside] + ROUNDING).astype(int) for v in (rows, columns)]
            needed = Window(*(slice(int(i.min()), int(i.max()) + 1) for i in indices))
            if math.prod(needed.size) * self.channels > MAX_READ and part.size != (1, 1):
                parts[:0] = _halves(part)
                continue
            within = tuple(i - s.start for i, s in zip(indices, needed, strict=True))
            place = tuple(part.within(window))
            pixels[place][is_inside] = self.source.read(needed)[within]
            has_data = self.source.valid(needed)
            valid[place][is_inside] = True if has_data is None else has_data[within]
        return pixels, valid


class _Conversion:
    """Converts pixels of an image to pixels of another image by their places on the map."""

    def __init__(self, source: ImageSource, target: ImageSource) -> None:
        self._from, self._to = source.place, (target.place, target.shape[:2])

    def convert(self, columns: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """Return the columns and rows (2, ...) in the other image.

        Returns None if some of several places have no coordinates in its reference system. A single
        place without coordinates is infinitely far away.
        """
        places = applied(self._from.transform, columns, rows)
        pixels = pixels_at(*self._to, *places, self._from.crs)
        if pixels is None and columns.size == 1:
            return np.full((2, *columns.shape), np.inf)
        return pixels

    def convert_some(self, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Convert a few places (n,), each by itself if they cannot be converted together."""
        if (places := self.convert(columns, rows)) is not None:
            return places
        each = zip(columns[:, None], rows[:, None], strict=True)
        return np.concatenate([self.convert(*place) for place in each], axis=1)


def _inside(columns: np.ndarray, rows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return which places are in an image (H, W)."""
    low = -ROUNDING
    inside = (columns >= low) & (columns < shape[1] + low)
    return inside & (rows >= low) & (rows < shape[0] + low)


def _border(shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns and rows of places around an image (H, W)."""
    along = np.linspace(0, 1, SURVEY)
    x = np.concatenate([along, along, 0 * along, 0 * along + 1])
    y = np.concatenate([0 * along, 0 * along + 1, along, along])
    return x * shape[1], y * shape[0]


def _halves(window: Window) -> list[Window]:
    """Cut a window along its longer axis."""
    axis = int(window.size[1] > window.size[0])
    span = window[axis]
    middle = (span.start + span.stop) // 2
    spans = slice(span.start, middle), slice(middle, span.stop)
    return [Window(*(half if i == axis else window[i] for i in (0, 1))) for half in spans]
