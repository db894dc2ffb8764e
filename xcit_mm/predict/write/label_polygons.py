"""Polygons of the classes of a label image of any size."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

import numpy as np
import shapely

from ...base.files import unfinished_folder
from ...base.geometry import Window, tiles, whole
from ...large.labels.outlines import from_arrays, outlines_of, to_arrays
from .joined_parts import joined
from .vector_layers import TOGETHER, LayerPart

BLOCK = 2048  # pixels of the side of a block whose regions are outlined together


@contextmanager
def without_small_regions(
    labels: np.ndarray, pixels: int, nodata: int, folder: Path
) -> Iterator[np.ndarray]:
    """Yield labels (H, W) in which smaller regions have the label of their largest neighbor.

    A region that only pixels without data surround is kept. The labels are a memory map of a
    file in ``folder``, which is removed at the end.
    """
    from rasterio.features import sieve

    with unfinished_folder(folder, 'labels') as temporary:

        def mapped(name: str, dtype: np.dtype) -> np.ndarray:
            return np.memmap(temporary / name, dtype, 'w+', shape=labels.shape)

        valid, merged = mapped('valid', np.dtype(np.uint8)), mapped('labels', labels.dtype)
        for window in tiles(whole(labels.shape), (BLOCK, BLOCK)):
            valid[tuple(window)] = labels[tuple(window)] != nodata
        sieve(labels, min(pixels, labels.size), merged, valid)
        try:
            yield merged
        finally:
            del valid, merged


def label_polygons(
    labels: np.ndarray, nodata: int, simplify: float | None = None
) -> Iterator[LayerPart]:
    """Yield the polygons of the regions of a label image (H, W), in parts.

    A region consists of pixels with one label that share sides. Without ``simplify``, the polygons
    follow the sides of the pixels. They have a corner wherever a neighboring polygon has one. The
    image is outlined block by block, and regions that continue in other blocks are put together as
    soon as all their blocks are outlined.

    Args:
        labels: uint8 or int16; an array or a memory map.
        nodata: The label of pixels without data, which belong to no polygon.
        simplify: The tolerance of a simplification in pixels, see ``shapely.coverage_simplify``.
            Neighbors still share their borders. The corners on borders of blocks are kept.
    """
    regions = _Regions(labels.shape)
    finished = chain.from_iterable(_finished(labels, nodata, simplify, regions))
    first = True
    while (part := list(islice(finished, TOGETHER))) or first:
        outlines = np.array([polygon for polygon, _ in part], object)
        values = np.array([label for _, label in part], int)
        yield LayerPart(outlines, values, shapely.area(outlines))
        first = False  # a layer without polygons has one part


def _finished(
    labels: np.ndarray, nodata: int, simplify: float | None, regions: '_Regions'
) -> Iterator[list[tuple[shapely.Polygon, int]]]:
    for row in tiles(whole(labels.shape), (BLOCK, labels.shape[1])):
        for window in tiles(row, (BLOCK, BLOCK)):
            polygons, values = _outlined(labels, window, simplify)
            has_data = values != nodata
            yield regions.add(window, polygons[has_data], values[has_data])
        yield regions.finish_row()


def _outlined(
    labels: np.ndarray, window: Window, simplify: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the polygons of a block in pixels of the image, and their labels."""
    polygons, values = outlines_of(np.ascontiguousarray(labels[tuple(window)]))
    polygons = _with_nodes(polygons, _nodes(labels, window))
    if simplify is not None:
        simplified = shapely.coverage_simplify(polygons, simplify, simplify_boundary=False)
        if shapely.is_valid(simplified).all():
            polygons = simplified
    corner = window.columns.start, window.rows.start
    return shapely.transform(polygons, lambda xy: xy + corner), values


def _nodes(labels: np.ndarray, window: Window) -> np.ndarray:
    """Return the corners of pixels of a block (h + 1, w + 1) where three or more borders meet.

    The sides of the block are borders, because they are borders of the block's polygons.
    """
    outer = window.grown(1, labels.shape)
    missing = [
        (inner.start - span.start == 0, span.stop - inner.stop == 0)
        for inner, span in zip(window, outer, strict=True)
    ]
    around = np.pad(labels[tuple(outer)], np.array(missing, int), 'edge')
    across, down = around[:, 1:] != around[:, :-1], around[1:] != around[:-1]
    down[[0, -1], :] = across[:, [0, -1]] = True
    return across[1:] + 0 + across[:-1] + down[:, 1:] + down[:, :-1] >= 3


def _with_nodes(polygons: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Add corners where the sides of polygons, which are horizontal or vertical, meet nodes."""
    corners, rings, offsets = to_arrays(polygons)
    corners = corners.astype(np.int64)
    sides = np.diff(corners, axis=0, append=0)
    lengths = np.abs(sides).sum(1)
    lengths[rings[1:] - 1] = 1  # the last corner of a ring, which is the first one, has no side
    first = np.cumsum(lengths) - lengths
    steps = np.arange(lengths.sum()) - np.repeat(first, lengths)
    points = np.repeat(corners, lengths, 0) + np.repeat(np.sign(sides), lengths, 0) * steps[:, None]
    is_corner = (steps == 0) | nodes[points[:, 1], points[:, 0]]
    before = np.concatenate([[0], np.cumsum(is_corner)])
    starts = np.append(first, len(steps))[rings]
    return from_arrays(points[is_corner].astype(float), before[starts], offsets)


class _Regions:
    """Parts of regions that continue in blocks that are not outlined yet.

    Blocks are added row by row. The polygons of two blocks have the same corners on the side that
    the blocks share, so parts of a region are found by the corner where a piece of it begins.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._above, self._below = (np.full(size[1], -1) for _ in range(2))  # parts by column
        self._left = np.full(size[0], -1)  # by row
        self._labels: dict[int, int] = {}  # of parts
        self._parents: dict[int, int] = {}
        self._members: dict[int, list[shapely.Polygon]] = {}

    def add(
        self, window: Window, polygons: np.ndarray, labels: np.ndarray
    ) -> list[tuple[shapely.Polygon, int]]:
        """Add a block, and return the polygons that it completes."""
        top, bottom, left, right = (
            self._pieces(polygons, axis, place)
            for axis, places in ((1, window.rows), (0, window.columns))
            for place in (places.start, places.stop)
        )
        open_parts = np.unique(np.concatenate([p for p, _ in (top, bottom, left, right)]))
        numbers = np.full(len(polygons), -1)
        numbers[open_parts] = np.arange(len(open_parts)) + len(self._parents)
        for i in open_parts:
            number = int(numbers[i])
            self._labels[number], self._parents[number] = int(labels[i]), number
            self._members[number] = [polygons[i]]
        for (parts, starts), neighbors in ((top, self._above), (left, self._left)):
            for a, b in zip(numbers[parts].tolist(), neighbors[starts].tolist(), strict=True):
                if b >= 0 and self._labels[a] == self._labels[b]:
                    self._join(a, b)
        self._left[window.rows] = -1
        for (parts, starts), sides in ((bottom, self._below), (right, self._left)):
            sides[starts] = numbers[parts]
        complete = np.flatnonzero(numbers < 0)
        return [(polygons[i], int(labels[i])) for i in complete]

    def finish_row(self) -> list[tuple[shapely.Polygon, int]]:
        """Return the regions that do not continue below the row of blocks."""
        below = np.unique(self._below[self._below >= 0]).tolist()
        still_open = {self._root(number) for number in below}
        finished = [number for number in self._members if number not in still_open]
        merged = []
        for number in finished:
            merged.append((joined(self._members.pop(number), BLOCK), self._labels[number]))
        self._above, self._below = self._below, np.full_like(self._below, -1)
        self._left[:] = -1
        return merged

    def _pieces(self, polygons: np.ndarray, axis: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the polygon and the start of each piece of an inner side of a block."""
        if place in (0, self._size[1 - axis]) or not len(polygons):
            return np.empty(0, int), np.empty(0, int)
        corners, rings, offsets = to_arrays(polygons)
        is_on = corners[:, axis] == place
        is_piece = is_on[:-1] & is_on[1:]
        is_piece[rings[1:-1] - 1] = False  # from one ring to the next one
        pieces = np.flatnonzero(is_piece)
        along = corners[:, 1 - axis]
        starts = np.minimum(along[pieces], along[pieces + 1]).astype(int)
        return np.searchsorted(rings[offsets], pieces, 'right') - 1, starts

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def _join(self, a: int, b: int) -> None:
        a, b = self._root(a), self._root(b)
        if a == b:
            return
        if len(self._members[a]) < len(self._members[b]):
            a, b = b, a
        self._parents[b] = a
        self._members[a] += self._members.pop(b)
