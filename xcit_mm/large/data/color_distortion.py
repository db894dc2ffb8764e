"""Brightness, contrast, saturation and hue of an image, changed in the same way in every window."""

from typing import NamedTuple

import cv2
import numpy as np

from ...base.geometry import Window
from ..files.image_source import ImageSource
from ..files.image_views import ImageView, RGBImage

HUES = 180  # in OpenCV's 8-bit HSV
# Pixels per row, a multiple of the vector width of any processor. OpenCV rounds pixels in whole
# vectors differently from the remaining pixels at the end of a row.
ROW = 64


class ColorDistortion(NamedTuple):
    """The numbers that mmseg's ``PhotoMetricDistortion`` draws for an image; None means no change.

    Attributes:
        brightness: What is added to each value.
        contrast: The factor of each value.
        contrast_is_first: Whether the contrast is changed before saturation and hue, or after them.
        saturation: The factor of each saturation.
        hue: What is added to each hue, in units of two degrees.
    """

    brightness: float | None
    contrast: float | None
    contrast_is_first: bool
    saturation: float | None
    hue: int | None

    def __call__(self, rgb: np.ndarray) -> np.ndarray:
        """Return a distorted copy of an RGB image (H, W, 3), uint8."""
        values = np.arange(256, dtype=np.float32)
        if self.brightness is not None:
            rgb = _linear(values + self.brightness)[rgb]
        if self.contrast is not None and self.contrast_is_first:
            rgb = _linear(values * self.contrast)[rgb]
        if self.saturation is not None:
            rgb = _in_hsv(rgb, 1, _linear(values * self.saturation))
        if self.hue is not None:
            rgb = _in_hsv(rgb, 0, ((np.arange(256) + self.hue) % HUES).astype(np.uint8))
        if self.contrast is not None and not self.contrast_is_first:
            rgb = _linear(values * self.contrast)[rgb]
        return rgb


class DistortedImage(ImageView):
    """An image as RGB, uint8, whose colors are distorted window by window."""

    def __init__(self, source: ImageSource, distortion: ColorDistortion) -> None:
        super().__init__(RGBImage(source), distortion)

    def _read(self, window: Window) -> np.ndarray:
        return self.change(self.source.read(window))


def _linear(values: np.ndarray) -> np.ndarray:
    return values.clip(0, 255).astype(np.uint8)


def _in_hsv(rgb: np.ndarray, channel: int, table: np.ndarray) -> np.ndarray:
    """Look up the values of a channel of HSV in a table, for each pixel separately."""
    pixels = rgb.reshape(-1, 3)
    rows = np.pad(pixels, [(0, -len(pixels) % ROW), (0, 0)]).reshape(-1, ROW, 3)
    hsv = cv2.cvtColor(rows, cv2.COLOR_RGB2HSV)
    hsv[..., channel] = table[hsv[..., channel]]
    rows = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return rows.reshape(-1, 3)[: len(pixels)].reshape(rgb.shape)
