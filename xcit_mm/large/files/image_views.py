"""Images whose windows are computed from other images when they are read, without a copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window, shifted
from ...data.transforms.decode import MAX_8_BITS, not_rgb, rgb_notes, to_rgb_8_bits
from .image_source import ImageSource


class ImageView(ImageSource):
    """An image whose windows are computed from the windows of another image.

    Args:
        source: The other image.
        change: A description of the change, for the identity of this image. Its text must contain
            all values.
        shape: (H, W, channels). Default: the shape of the other image.
        dtype: The NumPy type of the values. Default: the type of the other image.
    """

    def __init__(
        self,
        source: ImageSource,
        change: Any = None,
        shape: tuple[int, int, int] | None = None,
        dtype: np.dtype | None = None,
    ) -> None:
        shape, dtype = shape or source.shape, dtype or source.dtype
        super().__init__(source.name, None, shape, dtype, source.channels)
        self.source, self.change, self.max_rows = source, change, source.max_rows
        self.georeference, self.pixel_size = source.georeference, source.pixel_size
        self.control_points = source.control_points
        self.has_gaps, self.nodata = source.has_gaps, source.nodata
        self.level, self.levels, self.full_size = source.level, source.levels, source.full_size
        if dtype == source.dtype:
            self.max_value = source.max_value

    def valid_box(self) -> Window:
        return self.source.valid_box()

    def identity(self) -> list:
        change = [] if self.change is None else [repr(self.change)]
        return [*self.source.identity(), *change]

    def require_unchanged(self) -> None:
        self.source.require_unchanged()

    def _valid(self, window: Window) -> np.ndarray | None:
        return self.source.valid(window)


class RGBImage(ImageView):
    """An image as RGB, uint8.

    A gray channel is repeated three times. If there are more than three channels, the first three
    are used. 16-bit values are scaled to 8 bits.

    Attributes:
        notes: Sentences that describe how the values are changed.

    Raises:
        UserError: If the image has two channels, or values that are neither uint8 nor uint16.
    """

    def __init__(self, source: ImageSource) -> None:
        height, width, channels = source.shape
        super().__init__(source, shape=(height, width, 3), dtype=np.dtype(np.uint8))
        self.channels, self.max_value = 3, MAX_8_BITS
        if problem := not_rgb(channels, source.dtype):
            raise UserError(f'{source.name} {problem}')
        self.notes = rgb_notes(source.name, channels, source.max_value)

    def _read(self, window: Window) -> np.ndarray:
        return to_rgb_8_bits(self.source.read(window), self.source.max_value)


class RangedImage(ImageView):
    """An image of any type as uint8: a range of values becomes 0 to 255, and others are clipped.

    Args:
        source: The other image.
        limits: The values that become 0 and 255.
    """

    def __init__(self, source: ImageSource, limits: Sequence[float]) -> None:
        low, high = limits
        super().__init__(source, f'{low}..{high}', dtype=np.dtype(np.uint8))
        self.max_value = MAX_8_BITS
        self._low, self._factor = np.float32(low), np.float32(MAX_8_BITS / (high - low))

    def _read(self, window: Window) -> np.ndarray:
        values = np.nan_to_num(self.source.read(window).astype(np.float32))
        scaled = (values - self._low) * self._factor
        return scaled.round().clip(0, MAX_8_BITS).astype(np.uint8)


class CroppedImage(ImageView):
    """A window of another image.

    Args:
        source: The other image.
        window: The window.
        is_complete: Whether all pixels in the window are known to have data.
    """

    def __init__(self, source: ImageSource, window: Window, is_complete: bool = False) -> None:
        super().__init__(source, tuple(window), shape=(*window.size, source.shape[2]))
        self.window = window
        self.has_gaps = source.has_gaps and not is_complete
        transform = source.georeference.get('transform')
        if transform is not None:
            corner = window.columns.start, window.rows.start
            moved = transform * transform.translation(*corner)
            self.georeference = {**source.georeference, 'transform': moved}

    def _inside(self, window: Window) -> Window:
        starts = (span.start for span in self.window)
        return Window(*(shifted(s, start) for s, start in zip(window, starts, strict=True)))

    def _valid(self, window: Window) -> np.ndarray | None:
        return self.source.valid(self._inside(window))

    def valid_box(self) -> Window:
        box = self.source.valid_box().within(self.window)
        return box.clipped(self.shape[:2])

    def _read(self, window: Window) -> np.ndarray:
        return self.source.read(self._inside(window))


def window_of(corners: Sequence[int], size: tuple[int, int]) -> Window:
    """Return the window of an image (H, W) between left, top, right and bottom, in pixels.

    Raises:
        UserError: If the window is empty or extends beyond the image.
    """
    left, top, right, bottom = corners
    height, width = size
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise UserError(
            f'the region {left},{top},{right},{bottom} is not a window of the image of '
            f'{width}x{height} pixels: name left, top, right and bottom in pixels'
        )
    return Window(slice(top, bottom), slice(left, right))
