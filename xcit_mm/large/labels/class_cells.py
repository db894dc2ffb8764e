"""Where the classes of a segmentor are in an image: their pixels in each cell of a coarse grid."""

from typing import NamedTuple

import numpy as np

from ...base.geometry import Window
from .label_windows import LabelWindows

CELL, MAX_CELLS = 128, 256  # pixels of the side of a cell, and cells along the longer side


class ClassCells(NamedTuple):
    """The cells of an image that hold pixels of classes, sorted by class.

    Attributes:
        side: The pixels of the side of a cell.
        columns: The number of cells in a row of cells.
        classes: (n,) int32, the class of each entry.
        cells: (n,) int32, its cell, counted row by row.
        counts: (n,) int64, the number of pixels of this class in this cell.
    """

    side: int
    columns: int
    classes: np.ndarray
    cells: np.ndarray
    counts: np.ndarray

    def window(self, cell: int, size: tuple[int, int]) -> Window:
        """Return the pixels of a cell of an image (H, W)."""
        starts = [index * self.side for index in divmod(int(cell), self.columns)]
        return Window(*(slice(start, start + self.side) for start in starts)).clipped(size)


def count_cells(labels: LabelWindows, num_classes: int) -> ClassCells:
    """Count the pixels of each class in each cell. All labels are classes or ignored."""
    height, width = labels.shape
    side = max(CELL, -(-max(height, width) // MAX_CELLS))
    columns, number = -(-width // side), -(-width // side) * -(-height // side)
    keys, counts = [], []
    for window in labels.windows():
        values = labels.read(window)
        rows, across = (np.arange(span.start, span.stop) // side for span in window)
        wide = across[-1] - across[0] + 1
        cells = (rows - rows[0])[:, None] * wide + (across - across[0])
        is_class = values != labels.ignore
        in_window = np.bincount(cells[is_class] * num_classes + values[is_class])
        present = np.flatnonzero(in_window)
        cell, kind = np.divmod(present, num_classes)
        row, column = np.divmod(cell, wide)
        keys.append(kind * number + (row + rows[0]) * columns + column + across[0])
        counts.append(in_window[present])
    keys, which = np.unique(np.concatenate(keys), return_inverse=True)
    totals = np.bincount(which, np.concatenate(counts), len(keys)).astype(np.int64)
    classes, cells = np.divmod(keys, number)
    return ClassCells(side, columns, classes.astype(np.int32), cells.astype(np.int32), totals)
