"""The colors of classes, which are the same in all pictures and files."""

import colorsys
from typing import Any

import numpy as np

Color = tuple[int, int, int]  # red, green, blue, 0..255

GOLDEN_RATIO = 0.618033988749895  # steps of it on the circle of hues stay far from each other


def class_colors(palette: Any, num_classes: int) -> tuple[Color, ...]:
    """Return the palette of a dataset or checkpoint, or distinct colors if it is not valid."""
    if is_palette(palette, num_classes):
        return tuple(map(tuple, np.array(palette, float).astype(int).tolist()))
    return distinct_colors(num_classes)


def is_palette(palette: Any, num_classes: int) -> bool:
    """Return whether a value is a color for each of a number of classes."""
    try:
        colors = np.array(palette, float)
    except (TypeError, ValueError, RuntimeError):
        return False
    return colors.shape == (num_classes, 3) and bool(((colors >= 0) & (colors < 256)).all())


def distinct_colors(number: int) -> tuple[Color, ...]:
    """Return colors that can be told apart, the first ones best; always the same."""
    colors = (colorsys.hsv_to_rgb(i * GOLDEN_RATIO % 1, 0.8, 0.9) for i in range(number))
    return tuple(tuple(round(255 * value) for value in color) for color in colors)
