"""The largest steps of predicted heights, which show where tiles or slices do not fit together."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """The largest steps of the error across the borders of tiles, and inside them."""

    at_borders: float
    inside: float


def largest_steps(
    predicted: np.ndarray,
    heights: np.ndarray,
    rows: Collection[int],
    columns: Collection[int],
) -> Steps:
    """Return the largest steps of the error, ``predicted - heights``, between neighboring pixels.

    A step that the labels have as well, such as the edge of a roof, is no error. If tiles fit
    together, the steps across their borders are not larger than the steps inside.

    Args:
        predicted: The prediction (H, W).
        heights: The labels (H, W); pairs with NaN are left out.
        rows: The rows, without 0, where a tile starts; there is a border above each.
        columns: The columns, without 0, where a tile starts.

    Returns:
        The largest steps in the unit of the heights, 0 if there is no pair of pixels.
    """
    error = np.asarray(predicted, np.float64) - heights
    at_borders, inside = 0.0, 0.0
    for axis, starts in enumerate((rows, columns)):
        steps = np.abs(np.diff(error, axis=axis))
        largest = np.nan_to_num(steps, nan=0.0).max(axis=1 - axis, initial=0)
        is_border = np.isin(np.arange(1, len(largest) + 1), [*starts])
        at_borders = max(at_borders, largest[is_border].max(initial=0))
        inside = max(inside, largest[~is_border].max(initial=0))
    return Steps(float(at_borders), float(inside))
