"""Which parts of an image have data."""

import math
from collections.abc import Callable

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Span, Window, shifted, tiles, whole
from ...base.progress import Progress, silent
from .image_source import ImageSource, tile_of

NONE, SOME, ALL = range(3)  # of the pixels of a cell


def valid_area(source: ImageSource, progress: Progress = silent) -> tuple[Window, bool]:
    """Return the smallest window with all pixels that have data, and whether it has only such.

    The window is empty if no pixel has data.
    """
    box = source.valid_box()
    if not source.has_gaps:
        return box, True
    has_data, count = [np.zeros(n, bool) for n in source.shape[:2]], 0
    progress.expect(1)
    for window in progress(list(tiles(box, tile_of(source.max_rows))), 'pixels without data'):
        valid = source.valid(window)
        for along, span, axis in zip(has_data, window, (1, 0), strict=True):
            along[span] |= True if valid is None else valid.any(axis)
        count += math.prod(window.size) if valid is None else np.count_nonzero(valid)
    area = Window(*map(_extent, has_data))
    return area, count == math.prod(area.size)


def no_data(name: str) -> UserError:
    """Return the error about an image without any pixel that has data."""
    return UserError(
        f'{name} has no pixel with data where it is read: check its no-data value, and --nodata, '
        '--region and --mask if they are used'
    )


def cells_of(
    valid: Callable[[Window], np.ndarray | None],
    size: tuple[int, int],
    side: int,
    max_rows: int | None = None,
) -> np.ndarray:
    """Return how many pixels of each cell have data: ``NONE``, ``SOME`` or ``ALL``.

    Args:
        valid: Returns which pixels of a window have data, as :meth:`.ImageSource.valid`.
        size: (H, W) of the image.
        side: The side of a cell in pixels.
        max_rows: See :class:`.ImageSource`.

    Shape:
        Returns (ceil(H / side), ceil(W / side)) uint8.
    """
    counts, areas = (np.zeros([-(-n // side) for n in size], np.int64) for _ in range(2))
    for window in tiles(whole(size), tile_of(max_rows)):
        cells = Window(*(slice(s.start // side, -(-s.stop // side)) for s in window))
        starts = [
            np.maximum(np.arange(c.start, c.stop) * side - s.start, 0)
            for c, s in zip(cells, window, strict=True)
        ]
        pixels = valid(window)
        for total, values in ((counts, pixels), (areas, None)):
            values = np.ones(window.size, bool) if values is None else values
            sums = np.add.reduceat(values, starts[0], axis=0, dtype=np.int32)
            total[tuple(cells)] += np.add.reduceat(sums, starts[1], axis=1)
    return ((counts > 0).astype(np.uint8) + (counts == areas)).astype(np.uint8)


class Cells:
    """The cells of an image, some of which have no data, such as the patches of a backbone.

    Args:
        states: See :func:`cells_of`.
    """

    def __init__(self, states: np.ndarray) -> None:
        self.states = states

    def valid(self, window: Window) -> np.ndarray | None:
        """Return which cells of a window have data, (h, w) bool; None if all of them have."""
        has_data = self.states[tuple(window)] > NONE
        return None if has_data.all() else has_data

    def are_complete(self, window: Window) -> bool:
        """Return whether all pixels of the cells of a window have data."""
        return bool((self.states[tuple(window)] == ALL).all())

    def part_with_data(self, window: Window) -> Window | None:
        """Return the smallest part of a window with all of its cells that have data, if any."""
        box = box_of(self.states[tuple(window)] > NONE)
        if 0 in box.size:
            return None
        return Window(*(shifted(part, span.start) for part, span in zip(box, window, strict=True)))


def box_of(mask: np.ndarray) -> Window:
    """Return the smallest window with all pixels of a mask (h, w); it is empty if none is true."""
    return Window(*(_extent(mask.any(axis)) for axis in (1, 0)))


def _extent(has_data: np.ndarray) -> Span:
    (places,) = np.nonzero(has_data)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)
