"""Objects and masks as ``Detections`` of the package supervision, and back.

Letters in shapes: n objects in an image of H x W pixels.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...base.environment import require
from ...base.errors import ArgumentError

CLASS_NAME = 'class_name'  # what supervision calls the names, which its annotators show


def to_supervision(
    boxes: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    scores: np.ndarray | None = None,
    masks: Any = None,
    **data: np.ndarray,
) -> Any:
    """Return ``supervision.Detections``.

    Args:
        boxes: (n, 4).
        labels: (n,), which become ``class_id``.
        classes: Names of the classes.
        scores: (n,), which become ``confidence``.
        masks: (n, H, W) bool, or a ``CompactMask`` of supervision.
        data: Further values (n,) of the objects, by name.
    """
    require('supervision')
    import supervision

    names = np.array([classes[label] for label in labels], str)
    return supervision.Detections(boxes, masks, scores, labels, data={CLASS_NAME: names, **data})


def compact_masks(masks: Iterable[tuple[Sequence[int], np.ndarray]], size: tuple[int, int]) -> Any:
    """Return a ``CompactMask`` of supervision, which keeps masks as run lengths.

    Args:
        masks: At least one mask; see :func:`~.outlines.outlines_of_masks`.
        size: (H, W) of the image.
    """
    require('supervision')
    from supervision import CompactMask

    parts = []
    for (x, y), mask in masks:
        height, width = mask.shape
        box = np.array([[0, 0, width - 1, height - 1]])  # supervision's corners are inclusive
        parts.append(CompactMask.from_dense(mask[None], box, mask.shape).with_offset(x, y, size))
    return CompactMask.merge(parts)


def labels_of(found: Any, classes: Sequence[str]) -> np.ndarray:
    """Return the labels (n,) of ``supervision.Detections``.

    Raises:
        ArgumentError: If it is something else, or its objects have no class, or another one.
    """
    require('supervision')
    import supervision

    if not isinstance(found, supervision.Detections):
        kind = f'{type(found).__module__}.{type(found).__qualname__}'
        raise ArgumentError(f'a {kind} is not a supervision.Detections')
    labels = found.class_id if len(found) else np.empty(0, int)
    if labels is None:
        raise ArgumentError('the detections of supervision have no class_id: set their class_id')
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise ArgumentError(
            f'class_id[{wrong[0]}] of the detections of supervision is {labels[wrong[0]]}, but the '
            f'{len(classes)} classes have the labels 0 to {len(classes) - 1}'
        )
    return labels.astype(np.int64)


def masks_of(found: Any, size: tuple[int, int]) -> np.ndarray | None:
    """Return the masks (n, H, W) of ``supervision.Detections``, or None if it has no masks.

    Raises:
        ArgumentError: If they do not have the ``size`` (H, W).
    """
    if found.mask is None:
        return None
    masks = np.asarray(found.mask).astype(bool, copy=False)
    if masks.shape[1:] != size:
        (height, width), (rows, columns) = masks.shape[1:], size
        raise ArgumentError(
            f'the detections of supervision have masks of {width}x{height} pixels, but the image '
            f'has {columns}x{rows}'
        )
    return masks
