"""Images at another resolution, computed window by window."""

import math
from collections.abc import Iterator

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Span, Window, tiles
from .image_source import ImageSource
from .image_views import ImageView
from .pixel_sizes import to_full_size

MAX_READ = 2**23  # values of the source that are in memory at a time, or those of one pixel
HALF = 0.5  # share of the area of a pixel that needs to have data
TOLERANCE = 0.01  # relative difference to a resolution; a level within it is not resampled
ROUNDING = 1e-9  # tolerance of a share of an area


def level_for(source: ImageSource, resolution: float) -> int:
    """Return the smallest level whose pixels are at most about as large as a resolution, or 0.

    ``resolution`` is the size of a pixel in the unit of ``source.pixel_size``. ``source`` is the
    full image.

    Raises:
        UserError: If the file does not contain the size of its pixels in meters or micrometers.
    """
    if source.pixel_size is None:
        raise UserError(
            f'{source.name} does not contain the size of its pixels in meters: name a --level '
            'instead of --resolution, add the size with gdal_edit.py -a_srs -tr, or reproject '
            'degrees with gdalwarp -t_srs'
        )
    small_enough = [
        level
        for level, size in enumerate(source.levels)
        if max(source.pixel_size.reduced(source.full_size, size)[:2])
        <= resolution * (1 + TOLERANCE)
    ]
    return min(small_enough, key=lambda level: math.prod(source.levels[level]), default=0)


def at_resolution(source: ImageSource, resolution: float) -> ImageSource:
    """Return an image whose pixels have about the size ``resolution``, in the unit of the source.

    Each axis gets the whole number of pixels that is closest, and the pixels cover the image. An
    image that has such pixels already is returned as it is.
    """
    height, width, _ = source.pixel_size
    if max(abs(side / resolution - 1) for side in (height, width)) <= TOLERANCE:
        return source
    rows, columns, _ = source.shape
    size = tuple(
        max(1, round(n * pixel / resolution)) for n, pixel in ((rows, height), (columns, width))
    )
    return ResampledImage(source, size)


class ResampledImage(ImageView):
    """An image that is reduced or enlarged to a size, window by window.

    Reduced pixels are the mean of the area that they cover, and enlarged pixels are interpolated
    bilinearly, on each axis by itself. Only pixels with data are used. A pixel has data if at
    least half of its area has. The weights depend on the place in the whole image, and the terms
    are added in the order of their places, so the values are the same in any window.
    """

    def __init__(self, source: ImageSource, size: tuple[int, int]) -> None:
        super().__init__(source, ('resampled', *size), (*size, source.shape[2]))
        factors = tuple(n / m for n, m in zip(source.shape, size, strict=False))
        self._axes = tuple(map(_Axis, source.shape, size))
        if source.pixel_size is not None:
            self.pixel_size = source.pixel_size.reduced(source.shape, size)
        transform = source.georeference.get('transform')
        if transform is None:
            self.georeference = to_full_size(size, source.full_size)
        else:
            scale = type(transform).scale(factors[1], factors[0])
            self.georeference = {**source.georeference, 'transform': transform * scale}
        if source.max_rows is not None:
            self.max_rows = max(1, int(source.max_rows / factors[0]))

    def valid_box(self) -> Window:
        box = self.source.valid_box()
        return Window(*(axis.targets(span) for axis, span in zip(self._axes, box, strict=True)))

    def _read(self, window: Window) -> np.ndarray:
        pixels = np.empty((*window.size, self.channels), self.dtype)
        for part in self._parts(window):
            needed = self._needed(part)
            values = self.source.read(needed).astype(self._working_type())
            valid = self.source.valid(needed)
            if valid is None:
                mean = self._weighted(values, part, needed)
            else:
                values[~valid] = 0  # it may be NaN
                shares = self._weighted(valid[..., None].astype(values.dtype), part, needed)
                mean = self._weighted(values, part, needed)
                mean = np.divide(mean, shares, out=np.zeros_like(mean), where=shares > 0)
            if self.dtype.kind in 'iu':
                limits = np.iinfo(self.dtype)
                mean = mean.round().clip(limits.min, limits.max)
            pixels[tuple(part.within(window))] = mean
        return pixels

    def _valid(self, window: Window) -> np.ndarray | None:
        result = np.ones(window.size, bool)
        for part in self._parts(window):
            needed = self._needed(part)
            valid = self.source.valid(needed)
            if valid is not None:
                shares = self._weighted(valid[..., None].astype(np.float64), part, needed)
                result[tuple(part.within(window))] = shares[..., 0] >= HALF - ROUNDING
        return result

    def _weighted(self, values: np.ndarray, window: Window, needed: Window) -> np.ndarray:
        for number, (axis, span, source) in enumerate(zip(self._axes, window, needed, strict=True)):
            values = axis.weighted(values, number, span, source.start)
        return values

    def _needed(self, window: Window) -> Window:
        return Window(*(axis.sources(span) for axis, span in zip(self._axes, window, strict=True)))

    def _parts(self, window: Window) -> Iterator[Window]:
        """Cut a window so that what is read for a part is small."""
        side = math.isqrt(MAX_READ // self.channels)
        limits = side if self.source.max_rows is None else min(side, self.source.max_rows), side
        sizes = (max(1, int(n / axis.factor)) for n, axis in zip(limits, self._axes, strict=True))
        return tiles(window, tuple(sizes))

    def _working_type(self) -> np.dtype:
        return np.dtype(np.float32 if self.dtype.itemsize <= 2 else np.float64)


class _Axis:
    """One axis of an image that is resampled from ``size`` to ``target`` pixels."""

    def __init__(self, size: int, target: int) -> None:
        self.size, self.target, self.factor = size, target, size / target

    def terms(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        """Return the places (n, k) in the source of which pixels are made, and their weights."""
        pixels = np.arange(span.start, span.stop, dtype=np.float64)[:, None]
        if self.factor < 1:
            center = (pixels + HALF) * self.factor - HALF
            first = np.floor(center)
            places = first + np.arange(2)
            weights = 1 - np.abs(places - center)
        else:
            start, stop = (p * self.size / self.target for p in (pixels, pixels + 1))
            places = np.floor(start) + np.arange(math.ceil(self.factor) + 1)
            covered = np.minimum(places + 1, stop) - np.maximum(places, start)
            weights = covered.clip(0) / self.factor
        # A place without weight may be outside, or infinite.
        used = np.take_along_axis(places, weights.argmax(axis=1)[:, None], axis=1)
        places = np.where(weights > 0, places, used)
        return places.clip(0, self.size - 1).astype(np.int64), weights

    def sources(self, span: Span) -> Span:
        """Return the span of the source of which a span is made."""
        places, weights = self.terms(slice(span.start, span.start + 1))
        start = places[weights > 0].min()
        places, weights = self.terms(slice(span.stop - 1, span.stop))
        return slice(int(start), int(places[weights > 0].max()) + 1)

    def targets(self, span: Span) -> Span:
        """Return the span that is made of a span of the source."""
        margin = 1 if self.factor >= 1 else math.ceil(1 / self.factor)
        start = math.floor(span.start / self.factor) - margin
        stop = math.ceil(span.stop / self.factor) + margin
        if span.start >= span.stop:
            return slice(0, 0)
        return slice(max(0, start), min(self.target, stop))

    def weighted(self, values: np.ndarray, axis: int, span: Span, first: int) -> np.ndarray:
        """Return the weighted sums of an array along an axis; its first place is ``first``."""
        places, weights = self.terms(span)
        weights = weights.astype(values.dtype)
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        total = 0
        for k in range(weights.shape[1]):
            total = total + np.take(values, places[:, k] - first, axis) * weights[:, k].reshape(
                shape
            )
        return total
