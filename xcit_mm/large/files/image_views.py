"""Images whose windows are computed from other images when they are read, without a copy."""

from typing import Any

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window
from ...data.transforms.decode import not_rgb, to_rgb_8_bits
from .image_source import ImageSource

MAX_8_BITS = 255


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
        self.channels, self.max_value, self.notes = 3, MAX_8_BITS, []
        if problem := not_rgb(channels, source.dtype):
            raise UserError(f'{source.name} {problem}')
        if source.max_value != MAX_8_BITS:
            self.notes.append(
                f'{source.name}: its values from 0 to {source.max_value} are scaled to 0 to '
                f'{MAX_8_BITS}, the range of the training images; --range LOW,HIGH scales other '
                'values'
            )
        if channels > 3:
            self.notes.append(f'{source.name}: the first 3 of its {channels} channels are used')

    def _read(self, window: Window) -> np.ndarray:
        return to_rgb_8_bits(self.source.read(window), self.source.max_value)
