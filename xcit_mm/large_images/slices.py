"""Predict an image slice by slice, with a model that sees only one slice at a time.

This is also what mmseg's mode 'slide' and SAHI (arXiv 2202.06934) do. It works with any model, and
suits those whose training images were much smaller than the image.
"""

import math
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from mmengine.dataset import Compose

from ..errors import ArgumentError
from .detect import Objects
from .geometry import Window, shifted
from .normalized import NormalizedImage
from .progress import Progress
from .token_files import TokenFile
from .workspace import Workspace

if TYPE_CHECKING:
    from ..inference.model import Model
    from ..predictions import Detections

# Of two objects of a class in two slices, the one with the lower score is dropped if they share
# more than this part of the smaller one, as in SAHI. A slice sees only a part of a cut object.
MAX_SHARED = 0.5
SLICES = 'rows of slices'  # the stage of a workspace


def slices_of(size: tuple[int, int], side: int, overlap: int) -> list[tuple[Window, Window]]:
    """Return the slices of an image, and the middle of each, which no other slice sees better.

    Args:
        size: (H, W) of the image.
        side: Side of a slice in pixels.
        overlap: Pixels that neighbouring slices share; the last two may share more.

    Raises:
        ArgumentError: If a slice is too small, or the overlap is not smaller than a slice.
    """
    if side < 32 or not 0 <= overlap < side:
        raise ArgumentError(
            f'slices of {side} pixels with an overlap of {overlap} are not possible: slices '
            'need 32 pixels or more, and the overlap has to be smaller'
        )
    axes = [_spans(n, side, overlap) for n in size]
    rows, columns = (list(zip(spans, _middles(spans), strict=True)) for spans in axes)
    return [(Window(r, c), Window(mr, mc)) for r, mr in rows for c, mc in columns]


def _spans(n: int, side: int, overlap: int) -> list[slice]:
    starts = list(range(0, max(1, n - overlap), side - overlap))
    starts = sorted({max(0, min(start, n - side)) for start in starts})
    return [slice(start, min(n, start + side)) for start in starts]


def _middles(spans: list[slice]) -> list[slice]:
    """Cut each pair of neighbouring spans in the middle of the part that they share."""
    cuts = [(a.stop + b.start) // 2 for a, b in pairwise(spans)]
    return [
        slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, spans[-1].stop], strict=True)
    ]


def label_slices(
    model: 'Model',
    pixels: NormalizedImage,
    slices: list[tuple[Window, Window]],
    dtype: torch.dtype,
    workspace: Workspace,
    progress: Progress,
) -> TokenFile:
    """Label each slice by itself; the middle part of a slice determines the labels there.

    A run that was killed continues after the last finished row of slices.

    Returns:
        A store with the labels (H, W, 1).
    """
    height, width = pixels.size
    done = workspace.finished[SLICES]
    labels = workspace.open('labels', slice(0, height), (width, 1), dtype, done > 0)
    rows = _rows_of(slices)
    if done:
        _, middle = rows[:done][-1][-1]
        labels.verify(slice(0, middle.rows.stop))
    at_own_size = _at_own_size(model)
    for number, row in _unfinished(rows, done, progress):
        for window, middle in row:
            predicted = at_own_size.predict(pixels.pixels(window)).labels
            part = predicted[tuple(middle.within(window))]
            labels.write(middle, torch.from_numpy(np.ascontiguousarray(part))[..., None])
        workspace.finish(SLICES, number, labels)
    labels.verify()
    return labels


def detect_slices(
    model: 'Model',
    pixels: NormalizedImage,
    slices: list[tuple[Window, Window]],
    score_thr: float,
    workspace: Workspace,
    progress: Progress,
) -> Objects:
    """Detect the objects of each slice by itself, and drop the duplicates.

    A run that was killed continues after the last finished row of slices.
    """
    at_own_size = _at_own_size(model)
    rows, done = _rows_of(slices), workspace.finished[SLICES]
    parts = [workspace.load(f'objects_{number}') for number in range(1, done + 1)]
    for number, row in _unfinished(rows, done, progress):
        found = [
            _detected(at_own_size.predict(pixels.pixels(window)).above(score_thr), window)
            for window, _ in row
        ]
        parts.append({name: np.concatenate([part[name] for part in found]) for name in found[0]})
        workspace.save(f'objects_{number}', parts[-1])
        workspace.finish(SLICES, number)
    boxes, scores, labels, sources, *masks = (
        np.concatenate([part[name] for part in parts]) for name in parts[0]
    )
    kept = _without_duplicates(boxes, scores, labels, sources)
    masks = _unpacked(*masks) if masks else None
    return Objects(boxes[kept], scores[kept], labels[kept], masks and [masks[i] for i in kept])


def _rows_of(slices: list[tuple[Window, Window]]) -> list[list[tuple[Window, Window]]]:
    return [list(row) for _, row in groupby(slices, lambda pair: pair[0].rows.start)]


def _unfinished(
    rows: list[list[tuple[Window, Window]]], done: int, progress: Progress
) -> Iterator[tuple[int, Iterable[tuple[Window, Window]]]]:
    """Yield the number and the slices of each row that is not finished."""
    progress.expect(len(rows) - done)
    for number, row in enumerate(rows[done:], done + 1):
        yield number, progress(row, f'slices, row {number} of {len(rows)}')


def _at_own_size(model: 'Model') -> 'Model':
    """Return the model without resizing, and with the same fused copy."""
    at_own_size = copy(model)
    kept = [t for t in model.pipeline.transforms if 'Resize' not in type(t).__name__]
    at_own_size.pipeline = Compose(kept)
    return at_own_size


def _detected(found: 'Detections', window: Window) -> dict[str, np.ndarray]:
    """Return arrays of the objects of a slice, with the corner of the slice for each object.

    The boxes and the masks are in the coordinates of the image.
    """
    corner = window.columns.start, window.rows.start
    arrays = dict(
        boxes=found.boxes + np.array(corner * 2, np.float32),
        scores=found.scores,
        labels=found.labels,
        sources=np.tile(corner, (len(found), 1)),
    )
    if found.masks is None:
        return arrays
    masks = _cut(found, window)
    spans = [[span.start, span.stop] for window, _ in masks for span in window]
    pixels = [np.packbits(mask) for _, mask in masks]
    return arrays | dict(
        windows=np.array(spans, np.int64).reshape(-1, 4),
        masks=np.concatenate([np.zeros(0, np.uint8), *pixels]),
    )


def _unpacked(windows: np.ndarray, masks: np.ndarray) -> list[tuple[Window, np.ndarray]]:
    """Return the masks that :func:`_detected` has packed."""
    unpacked, start = [], 0
    for top, bottom, left, right in windows.tolist():
        window = Window(slice(top, bottom), slice(left, right))
        size = math.prod(window.size)
        stop = start + -(-size // 8)
        pixels = np.unpackbits(masks[start:stop], count=size).reshape(window.size)
        unpacked.append((window, pixels.astype(bool)))
        start = stop
    return unpacked


def _cut(found: 'Detections', window: Window) -> list[tuple[Window, np.ndarray]]:
    """Return each mask in a window of the image that is slightly larger than its box."""
    if found.masks is None:
        return []
    cut = []
    for box, mask in zip(found.boxes, found.masks, strict=True):
        inner = Window.around(box.tolist(), mask.shape)
        outer = Window(*(shifted(s, w.start) for s, w in zip(inner, window, strict=True)))
        cut.append((outer, mask[tuple(inner)].copy()))
    return cut


def _without_duplicates(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """Return the indices of the boxes that are kept, by decreasing score.

    ``sources`` (n, 2) are the corners of the slices, which tell them apart. A box is compared only
    with those of slices that it may overlap, so the time is not quadratic in the number of slices.
    """
    corners, slice_of = np.unique(sources, axis=0, return_inverse=True)
    slice_of = slice_of.ravel()
    groups = [np.flatnonzero(slice_of == i) for i in range(len(corners))]
    starts = np.array([boxes[group, :2].min(0) for group in groups])
    stops = np.array([boxes[group, 2:].max(0) for group in groups])
    others = []  # for each slice, the boxes of the slices that it may share something with
    for i in range(len(corners)):
        meet = ((starts < stops[i]) & (stops > starts[i])).all(1)
        meet[i] = False
        others.append(np.concatenate([groups[j] for j in np.flatnonzero(meet)] or [groups[i][:0]]))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept, is_left = [], np.ones(len(boxes), bool)
    for best in np.argsort(-scores, kind='stable'):
        if not is_left[best]:
            continue
        kept.append(best)
        near = others[slice_of[best]]
        first = np.maximum(boxes[near, :2], boxes[best, :2])
        sides = np.minimum(boxes[near, 2:], boxes[best, 2:]) - first
        shared = sides.clip(0).prod(1) > MAX_SHARED * np.minimum(areas[near], areas[best])
        # A box with a higher score that shares as much would have dropped this one.
        is_left[near[shared & (labels[near] == labels[best])]] = False
    return np.array(kept, int)
