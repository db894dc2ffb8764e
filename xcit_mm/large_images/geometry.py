"""Define windows of images and maps, and the tiles that cover them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Window(NamedTuple):
    """Rows and columns of an image or a map, as slices with a start and a stop."""

    rows: slice
    columns: slice

    @property
    def size(self) -> tuple[int, int]:
        return tuple(length(span) for span in self)

    @classmethod
    def around(cls, box: Sequence[float], size: tuple[int, int]) -> 'Window':
        """Return the window of an image (H, W) that holds a box and a pixel on each side of it."""
        left, top, right, bottom = box
        rows = slice(math.floor(top) - 1, math.ceil(bottom) + 1)
        columns = slice(math.floor(left) - 1, math.ceil(right) + 1)
        return cls(rows, columns).grown(0, size)

    def grown(self, margin: int, size: tuple[int, int]) -> 'Window':
        """Return the window with a margin on each side, clipped at the borders of a map."""
        return Window(*(grown(span, margin, n) for span, n in zip(self, size, strict=True)))

    def within(self, outer: 'Window') -> 'Window':
        """Return the same window in the coordinates of an outer window."""
        return Window(*(shifted(span, -o.start) for span, o in zip(self, outer, strict=True)))


def length(span: slice) -> int:
    return span.stop - span.start


def shifted(span: slice, offset: int) -> slice:
    return slice(span.start + offset, span.stop + offset)


def grown(span: slice, margin: int, size: int) -> slice:
    return slice(max(0, span.start - margin), min(size, span.stop + margin))


def overlap(a: slice, b: slice) -> slice:
    """Return the part that two spans share, or a span of length 0 if they share nothing."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))


def whole(size: tuple[int, int]) -> Window:
    return Window(*(slice(0, n) for n in size))


def tiles(area: Window, tile: tuple[int, int]) -> Iterator[Window]:
    """Cut an area row by row into tiles (h, w) that begin at multiples of h and w."""
    for rows in _parts(area.rows, tile[0]):
        for columns in _parts(area.columns, tile[1]):
            yield Window(rows, columns)


def _parts(span: slice, size: int) -> Iterator[slice]:
    for start in range(span.start // size * size, span.stop, size):
        yield overlap(slice(start, start + size), span)
