"""Predict an image slice by slice, with a model that sees only one slice at a time.

This is also what mmseg's mode 'slide' and SAHI (arXiv 2202.06934) do. It works with any model, and
suits those whose training images were much smaller than the image.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from mmengine.dataset import Compose

from ..errors import ArgumentError
from .detection import Objects
from .normalisation import NormalisedImage
from .progress import Progress
from .store import TokenStore
from .windows import Window, shifted

if TYPE_CHECKING:
    from ..inference.model import Model
    from ..predictions import Detections

# Of two objects of a class in two slices, the one with the lower score is dropped if they share
# more than this part of the smaller one, as in SAHI. A slice sees only a part of a cut object.
MAX_SHARED = 0.5


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
    pixels: NormalisedImage,
    slices: list[tuple[Window, Window]],
    labels: TokenStore,
    progress: Progress,
) -> None:
    """Label each slice by itself; the middle part of a slice determines the labels there."""
    at_own_size = _at_own_size(model)
    for window, middle in progress(slices, 'slices'):
        predicted = at_own_size.predict(pixels.pixels(window)).labels
        part = predicted[tuple(middle.within(window))]
        labels.write(middle, torch.from_numpy(np.ascontiguousarray(part))[..., None])


def detect_slices(
    model: 'Model',
    pixels: NormalisedImage,
    slices: list[tuple[Window, Window]],
    score_thr: float,
    progress: Progress,
) -> Objects:
    """Detect the objects of each slice by itself, and drop the duplicates."""
    at_own_size = _at_own_size(model)
    boxes, scores, labels, sources, masks = [], [], [], [], []
    for number, (window, _) in enumerate(progress(slices, 'slices')):
        found = at_own_size.predict(pixels.pixels(window)).above(score_thr)
        corner = window.columns.start, window.rows.start
        boxes.append(found.boxes + np.array(corner * 2, np.float32))
        scores.append(found.scores)
        labels.append(found.labels)
        sources.append(np.full(len(found), number))
        masks += _cut(found, window)
    arrays = [np.concatenate(parts) for parts in (boxes, scores, labels, sources)]
    kept = _without_duplicates(*arrays)
    boxes, scores, labels, _ = (array[kept] for array in arrays)
    return Objects(boxes, scores, labels, [masks[i] for i in kept] if masks else None)


def _at_own_size(model: 'Model') -> 'Model':
    kept = [t for t in model.pipeline.transforms if 'Resize' not in type(t).__name__]
    return replace(model, pipeline=Compose(kept))


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
    """Return the indices of the boxes that are kept, by decreasing score."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order, kept = np.argsort(-scores, kind='stable'), []
    for label in np.unique(labels):
        left = order[labels[order] == label]
        while len(left):
            best, left = left[0], left[1:]
            kept.append(best)
            corners = np.maximum(boxes[left, :2], boxes[best, :2])
            sides = np.minimum(boxes[left, 2:], boxes[best, 2:]) - corners
            shared = sides.clip(0).prod(1) > MAX_SHARED * np.minimum(areas[left], areas[best])
            left = left[~(shared & (sources[left] != sources[best]))]
    kept = np.array(kept, int)
    return kept[np.argsort(-scores[kept], kind='stable')]
