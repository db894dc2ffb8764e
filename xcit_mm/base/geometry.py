"""Spans, windows and tiles of images and maps.

A *span* is a part of one axis, a slice with a start and a stop. A *window* is a span of rows and a
span of columns. *Tiles* are the windows into which a larger window is cut.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Span = slice  # arrays and tensors are indexed by slices


class Window(NamedTuple):
    """A span of rows and a span of columns of an image or a map."""

    rows: Span
    columns: Span

    @property
    def size(self) -> tuple[int, int]:
        return tuple(length(span) for span in self)

    @classmethod
    def around(cls, box: Sequence[float], size: tuple[int, int]) -> 'Window':
        """Return the window of an image (H, W) that holds a box and a pixel on each side of it."""
        left, top, right, bottom = box
        rows = slice(math.floor(top), math.ceil(bottom))
        columns = slice(math.floor(left), math.ceil(right))
        return cls(rows, columns).grown(1, size)

    def grown(self, margin: int, size: tuple[int, int]) -> 'Window':
        """Return the window with a margin on each side, clipped at the borders of a map."""
        return Window(*(grown(span, margin, n) for span, n in zip(self, size, strict=True)))

    def clipped(self, size: tuple[int, int]) -> 'Window':
        """Return the part of the window that is within a map; it may be empty."""
        return Window(*(overlap(span, slice(0, n)) for span, n in zip(self, size, strict=True)))

    def within(self, outer: 'Window') -> 'Window':
        """Return the same window in the coordinates of an outer window."""
        return Window(*(shifted(span, -o.start) for span, o in zip(self, outer, strict=True)))


def around(inner: Window, outer: Window) -> Iterator[Window]:
    """Yield the windows, at most four, that cover an outer window around an inner one."""
    (top, bottom), (left, right) = ((s.start, s.stop) for s in inner)
    for rows, columns in (
        (slice(outer.rows.start, top), outer.columns),
        (slice(bottom, outer.rows.stop), outer.columns),
        (inner.rows, slice(outer.columns.start, left)),
        (inner.rows, slice(right, outer.columns.stop)),
    ):
        if length(rows) and length(columns):
            yield Window(rows, columns)


def length(span: Span) -> int:
    return span.stop - span.start


def shifted(span: Span, offset: int) -> Span:
    return slice(span.start + offset, span.stop + offset)


def grown(span: Span, margin: int, size: int) -> Span:
    """Return the span with a margin on each side, clipped at the ends of an axis."""
    return slice(max(0, span.start - margin), min(size, span.stop + margin))


def overlap(a: Span, b: Span) -> Span:
    """Return what two spans have in common, or a span of length 0 if that is nothing."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))


def whole(size: tuple[int, int]) -> Window:
    return Window(*(slice(0, n) for n in size))


def tiles(window: Window, size: tuple[int, int]) -> Iterator[Window]:
    """Cut a window row by row into tiles of a size (h, w) that begin at multiples of h and w."""
    for rows in _cut(window.rows, size[0]):
        for columns in _cut(window.columns, size[1]):
            yield Window(rows, columns)


def _cut(span: Span, size: int) -> Iterator[Span]:
    for start in range(span.start // size * size, span.stop, size):
        yield overlap(slice(start, start + size), span)


def evenly_cut(size: int, most: int, unit: int) -> list[Span]:
    """Cut an axis at multiples of a unit into spans of about the same length, at most ``most``."""
    units = -(-size // unit)
    count = -(-units // max(1, most // unit))
    cuts = [units * i // count * unit for i in range(count)]
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], size], strict=True)]
