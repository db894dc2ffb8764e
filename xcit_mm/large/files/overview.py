"""Reduced pictures of images and labels of any size."""

from collections.abc import Callable

import cv2
import numpy as np

from ...base.geometry import Window, tiles, whole
from .image_source import tile_of


def overview(
    size: tuple[int, int],
    read: Callable[[Window], np.ndarray],
    max_side: int,
    max_rows: int | None = None,
) -> np.ndarray:
    """Return an image of (H, W), reduced by an integer factor so that no side exceeds a limit.

    ``read`` returns windows (h, w, channels) of pixels, whose mean is computed, or windows (h, w)
    of labels, of which every n-th is kept. The windows have about ``max_rows`` rows at most.
    """
    factor = max(1, -(-max(size) // max_side))
    small = tuple(-(-n // factor) for n in size)
    picture = None
    tile = tuple(max(1, n // factor) * factor for n in tile_of(max_rows))
    for window in tiles(whole(size), tile):
        values = read(window)
        target = Window(*(slice(s.start // factor, -(-s.stop // factor)) for s in window))
        if values.ndim == 2:
            values = values[::factor, ::factor]
        else:
            missing = [-n % factor for n in window.size]
            values = np.pad(values, [(0, missing[0]), (0, missing[1]), (0, 0)], 'edge')
            values = cv2.resize(values, target.size[::-1], interpolation=cv2.INTER_AREA)
            values = values.reshape(*target.size, -1)
        if picture is None:
            picture = np.zeros((*small, *values.shape[2:]), values.dtype)
        picture[tuple(target)] = values
    return picture
