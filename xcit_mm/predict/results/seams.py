"""The largest steps of predicted heights, which show where tiles or slices do not fit together."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """The largest false steps across the borders of tiles, and inside them."""

    at_borders: float
    inside: float


def largest_steps(
    predicted: np.ndarray,
    heights: np.ndarray,
    rows: Collection[int],
    columns: Collection[int],
) -> Steps:
    """Return the largest steps between neighboring pixels that a prediction adds to the labels.

    If the labels rise by ``a`` from one pixel to the next, a prediction that rises by 0 to ``a``
    has no false step, because a model blurs the edges of roofs. Otherwise, the false step is the
    distance of its rise from this range. If tiles fit together, the steps across their borders are
    not larger than the steps inside.

    Args:
        predicted: The prediction (H, W).
        heights: The labels (H, W); pairs with NaN are left out.
        rows: The rows, without 0, where a tile starts; there is a border above each.
        columns: The columns, without 0, where a tile starts.

    Returns:
        The largest steps in the unit of the heights, 0 if there are none.
    """
    largest = [0.0, 0.0]
    for axis, starts in enumerate((rows, columns)):
        rise, true_rise = (np.diff(x.astype(np.float64), axis=axis) for x in (predicted, heights))
        steps = np.maximum(rise - np.maximum(true_rise, 0), np.minimum(true_rise, 0) - rise)
        steps = np.nan_to_num(steps, nan=0.0).max(axis=1 - axis, initial=0)
        is_border = np.isin(np.arange(1, len(steps) + 1), [*starts])
        for i, chosen in enumerate((is_border, ~is_border)):
            largest[i] = max(largest[i], float(steps[chosen].max(initial=0)))
    return Steps(*largest)
