"""Objects that slices cut, joined into whole ones."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from shapely import STRtree, box

from ...base.geometry import Span, Window, length, overlap
from ...large.maps.objects import Objects

MIN_AGREEMENT = 0.5  # IoU of two parts of an object, in shared pixels or along the seam
REACH = 3  # pixels between a part and the border that cuts it: boxes are not exact
MIN_SHARED = 8  # pixels; across a narrower overlap, two parts are compared along the seam only


class Joined(NamedTuple):
    """Objects without the parts that were joined.

    Attributes:
        objects: The n objects.
        corners: (n, 2), the corner of the slice that the object, or its best part, was found in.
        is_cut: (n,), whether an object touches a border of its slice within the image, and no part
            of it was found beyond the border.
        cut: The number of objects, before they were joined, that touch such a border.
    """

    objects: Objects
    corners: np.ndarray
    is_cut: np.ndarray
    cut: int


def join(
    objects: Objects, corners: np.ndarray, slices: Sequence[Window], size: tuple[int, int]
) -> Joined:
    """Join the parts of objects that slices cut.

    Two objects of a class are parts of one object if the border that cuts one of them lies within
    the slice of the other one, and if they agree: in the pixels that both slices show, their masks
    (or boxes, for a model without masks) overlap by half. If the slices share few pixels or none,
    both objects must be cut, and must overlap by half along the seam. An object is joined with at
    most one object of another slice, the one that it agrees with best, so no two parts of a joined
    object are from one slice. The joined object has the highest score of its parts, and the union
    of their masks and boxes, or the mask and the box of a part that no border cuts.

    Args:
        objects: The n objects of all slices, in the coordinates of the image.
        corners: (n, 2), x and y of the slice that each of them was found in.
        slices: The slices.
        size: (H, W) of the image.
    """
    by_corner = {(window.columns.start, window.rows.start): window for window in slices}
    windows = [by_corner[corner] for corner in map(tuple, corners.tolist())]
    sides = _cut_sides(objects, windows, size)
    groups = _groups(_agreeing(objects, corners, windows, sides), corners)
    best = np.array([max(group, key=lambda i: objects.scores[i]) for group in groups], int)
    are_cut = sides.any(1)
    still_cut = [len(group) == 1 and bool(are_cut[group[0]]) for group in groups]
    unions = [_union(objects, group, ~are_cut) for group in groups]
    boxes = np.array([box for box, _ in unions], objects.boxes.dtype).reshape(-1, 4)
    masks = None if objects.masks is None else [mask for _, mask in unions]
    whole = Objects(boxes, objects.scores[best], objects.labels[best], masks)
    return Joined(whole, corners[best], np.array(still_cut, bool), int(are_cut.sum()))


def _agreeing(
    objects: Objects, corners: np.ndarray, windows: Sequence[Window], sides: np.ndarray
) -> list[tuple[int, int]]:
    """Return the pairs of objects that agree, the best pair first."""
    pairs = {
        pair: _agreement(objects, windows, sides, *pair) for pair in _near(objects, corners, sides)
    }
    agreeing = [pair for pair, value in pairs.items() if value >= MIN_AGREEMENT]
    return sorted(agreeing, key=lambda pair: -pairs[pair])


def _groups(pairs: Sequence[tuple[int, int]], corners: np.ndarray) -> list[list[int]]:
    """Group the n objects by pairs, so that no two objects of a group are from one slice."""
    root = list(range(len(corners)))  # of the tree that holds each object

    def root_of(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    slices = [{tuple(corner)} for corner in corners.tolist()]  # of the objects of a root
    for i, j in pairs:
        a, b = root_of(i), root_of(j)
        if slices[a].isdisjoint(slices[b]):
            root[a] = b
            slices[b] |= slices[a]
    groups: dict[int, list[int]] = {}
    for i in range(len(corners)):
        groups.setdefault(root_of(i), []).append(i)
    return list(groups.values())


def _cut_sides(objects: Objects, windows: Sequence[Window], size: tuple[int, int]) -> np.ndarray:
    """Return which borders of its slice each object touches, unless they are the image's borders.

    They are (n, 4) bool, for the left, top, right and bottom border.
    """
    edges = [(c.start, r.start, c.stop, r.stop) for r, c in windows]
    edges = np.array(edges, float).reshape(-1, 4)
    is_inner = (edges > 0) & (edges < [*size[::-1], *size[::-1]])
    return is_inner & (abs(objects.boxes - edges) <= REACH)


def _near(objects: Objects, corners: np.ndarray, sides: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield each cut object with each object of its class in another slice that it meets."""
    is_cut = sides.any(1)
    cut = np.flatnonzero(is_cut)
    if not len(cut):
        return
    grown = objects.boxes + np.array([-REACH, -REACH, REACH, REACH])
    first, j = STRtree(box(*grown.T)).query(box(*grown[cut].T), predicate='intersects')
    i = cut[first]
    is_pair = (objects.labels[i] == objects.labels[j]) & (corners[i] != corners[j]).any(1)
    is_pair &= ~is_cut[j] | (i < j)  # each pair of cut objects once
    yield from zip(i[is_pair].tolist(), j[is_pair].tolist(), strict=True)


def _agreement(
    objects: Objects, windows: Sequence[Window], sides: np.ndarray, i: int, j: int
) -> float:
    """Return how well two objects agree where both slices show them; 0 if no border cuts them."""
    a, b = windows[i], windows[j]
    cuts = [_faces(a, b, sides[i]), _faces(b, a, sides[j])]
    if not any(cuts):
        return 0.0
    shared = Window(*(_common(p, q) for p, q in zip(a, b, strict=True)))
    thin = [axis for axis, span in enumerate(shared) if length(span) < MIN_SHARED]
    if not thin:
        return _iou(_pixels(objects, i, shared), _pixels(objects, j, shared))
    if len(thin) > 1 or not all(cuts):  # slices that share only a corner have common neighbors
        return 0.0
    across, along = thin[0], 1 - thin[0]
    band = list(shared)
    band[across] = slice(shared[across].start - REACH, shared[across].stop + REACH)
    profiles = [_pixels(objects, k, Window(*band)).any(across) for k in (i, j)]
    return _iou(*profiles) if length(shared[along]) else 0.0


def _faces(a: Window, b: Window, sides: np.ndarray) -> bool:
    """Return whether one of the borders of a slice that cut an object lies within another slice."""
    left, top, right, bottom = sides
    (ar, ac), (br, bc) = a, b
    return bool(
        (left and bc.start < ac.start <= bc.stop)
        or (right and bc.start <= ac.stop < bc.stop)
        or (top and br.start < ar.start <= br.stop)
        or (bottom and br.start <= ar.stop < br.stop)
    )


def _common(a: Span, b: Span) -> Span:
    """Return what two spans share, or the place between them; it may have a length of 0."""
    common = overlap(a, b)
    return common if length(common) else slice(max(a.start, b.start), max(a.start, b.start))


def _pixels(objects: Objects, i: int, window: Window) -> np.ndarray:
    """Return the mask of an object, or its box as a mask, within a window."""
    pixels = np.zeros(window.size, bool)
    if objects.masks is not None:
        own, mask = objects.masks[i]
    else:
        left, top, right, bottom = objects.boxes[i].round().astype(int).tolist()
        own, mask = Window(slice(top, bottom), slice(left, right)), None
    common = Window(*(overlap(p, q) for p, q in zip(own, window, strict=True)))
    if all(common.size):
        pixels[tuple(common.within(window))] = (
            True if mask is None else mask[tuple(common.within(own))]
        )
    return pixels


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    return np.count_nonzero(a & b) / max(1, np.count_nonzero(a | b))


def _union(
    objects: Objects, group: Sequence[int], is_whole: np.ndarray
) -> tuple[np.ndarray, tuple[Window, np.ndarray] | None]:
    """Return the box and the mask of all parts, or of the best one that no border cuts."""
    wholes = [i for i in group if is_whole[i]]
    group = [max(wholes, key=lambda i: objects.scores[i])] if wholes else group
    boxes = objects.boxes[group]
    union = np.concatenate((boxes[:, :2].min(0), boxes[:, 2:].max(0)))
    if objects.masks is None or len(group) == 1:
        return union, objects.masks and objects.masks[group[0]]
    windows = [objects.masks[i][0] for i in group]
    window = Window(*(reduce(_hull, spans) for spans in zip(*windows, strict=True)))
    mask = np.zeros(window.size, bool)
    for i in group:
        part, pixels = objects.masks[i]
        mask[tuple(part.within(window))] |= pixels
    return union, (window, mask)


def _hull(a: Span, b: Span) -> Span:
    return slice(min(a.start, b.start), max(a.stop, b.stop))
