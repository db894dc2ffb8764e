"""Images whose values are scaled to 8 bits."""

from collections.abc import Sequence

import numpy as np

from ...base.geometry import Window
from .image_source import ImageSource
from .image_views import MAX_8_BITS, ImageView


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
