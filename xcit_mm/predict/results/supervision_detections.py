"""Objects and masks as ``Detections`` of the package supervision, and back.

Letters in shapes: n objects in an image of H x W pixels.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...base.environment import require

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


def labels_of(detections: Any) -> np.ndarray:
    """Return the labels (n,) of ``supervision.Detections``."""
    return (detections.class_id if len(detections) else np.empty(0)).astype(np.int64)
