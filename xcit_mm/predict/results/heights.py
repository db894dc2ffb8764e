"""The height of each pixel of an image, or another number that a model predicts for it."""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .drawing import draw_heights
from .short_texts import size_text

Limits = tuple[float, float]  # the lowest and the highest height of a color scale


@dataclass(frozen=True, repr=False)
class Heights:
    """The height of each pixel of an image of H x W pixels.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        values: (H, W) float32, in the unit of the labels in training; NaN where there is no height.
    """

    image: np.ndarray
    values: np.ndarray

    def __repr__(self) -> str:
        low, high = self.limits
        range_ = 'no data' if np.isnan(low) else f'{low:.4g} to {high:.4g}'
        return f'{type(self).__name__}({size_text(self.values.shape)}: {range_})'

    @cached_property
    def limits(self) -> Limits:
        """The lowest and the highest height; NaN if no pixel has one."""
        return limits_of(self.values)

    def draw(self, opacity: float = 0.7, limits: Limits | None = None) -> np.ndarray:
        """Draw the heights as colors over the image, and their scale below.

        Args:
            opacity: Opacity of the colors, 0..1.
            limits: The heights of the first and the last color of the scale, for pictures to
                compare. Default: the lowest and the highest height of this prediction.

        Returns:
            RGB, uint8, (H + scale, W, 3); a small image is enlarged by an integer factor.
        """
        return draw_heights(self.image, self._drawn_values(), limits or self.limits, opacity)

    # The heights of a large image are read by windows.

    def _drawn_values(self) -> np.ndarray:
        return self.values


def limits_of(*values: np.ndarray) -> Limits:
    """Return the lowest and the highest of all values; NaN if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)  # about arrays without a value
        lows, highs = zip(*((np.nanmin(v), np.nanmax(v)) for v in values), strict=True)
        return float(np.nanmin(lows)), float(np.nanmax(highs))
