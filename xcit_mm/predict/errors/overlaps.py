"""Overlaps of the predicted and the annotated objects of an image."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

# IoUs of TIDE (arXiv 2008.08115, section 2.2): from the first one an object is found, and up to the
# second one a prediction lies on the background.
FOUND, MAX_BACKGROUND_IOU = 0.5, 0.1
MAX_PAIRS = 2**22  # pairs whose IoU is computed at a time


class Overlaps(NamedTuple):
    """The n predicted objects of an image, the m annotated ones, and the p pairs that overlap.

    Attributes:
        scores: (n,), decreasing.
        predicted: (n,), the classes of the predictions.
        annotated: (m,), the classes of the annotations.
        in_crowd: (n,) bool, whether more than half of a prediction lies in a crowd of its class.
        pairs: (p, 2), the indices of a prediction and of an annotation with an IoU of at least 0.1,
            in the order of the predictions, and from the highest IoU of each to the lowest.
        iou: (p,), their IoUs.
    """

    scores: np.ndarray
    predicted: np.ndarray
    annotated: np.ndarray
    in_crowd: np.ndarray
    pairs: np.ndarray
    iou: np.ndarray

    @property
    def is_same_class(self) -> np.ndarray:
        """(p,) bool, whether the class of a pair is the same."""
        return self.predicted[self.pairs[:, 0]] == self.annotated[self.pairs[:, 1]]


def overlaps(
    predictions: Sequence[tuple[float, int, Any]], annotations: Sequence[tuple[bool, int, Any]]
) -> Overlaps:
    """Compute the overlaps of the objects of an image.

    Args:
        predictions: The score, the class and the shape of each prediction. A shape is a box (left,
            top, width, height) or the run lengths of a mask.
        annotations: For each annotation whether it is a crowd, the class and the shape.
    """
    predictions = sorted(predictions, key=lambda prediction: -prediction[0])
    scores, predicted, shapes = _columns(predictions)
    _, annotated, objects = _columns([entry for entry in annotations if not entry[0]])
    _, classes, crowds = _columns([entry for entry in annotations if entry[0]])
    of_prediction, of_crowd, _ = _pairs(shapes, crowds, is_crowd=True, above=FOUND)
    of_class = predicted[of_prediction] == classes[of_crowd]
    rows, columns, iou = _pairs(shapes, objects)
    order = np.lexsort((columns, -iou, rows))
    return Overlaps(
        scores,
        predicted,
        annotated,
        np.isin(np.arange(len(scores)), of_prediction[of_class]),
        np.stack([rows, columns], axis=1)[order],
        iou[order],
    )


def matched(pairs: Iterable[Sequence[int]], taken: Iterable[int] = ()) -> dict[int, int]:
    """Match each prediction with the first annotation in its pairs that no earlier one has.

    Returns:
        The index of the annotation by the index of the prediction. Annotations that are ``taken``
        are matched with none.
    """
    partners, taken = {}, set(taken)
    for prediction, annotation in pairs:
        if prediction not in partners and annotation not in taken:
            partners[prediction] = annotation
            taken.add(annotation)
    return partners


def _columns(entries: Sequence[tuple[float, int, Any]]) -> tuple[np.ndarray, np.ndarray, list]:
    values, classes, shapes = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(values, float), np.array(classes, int), list(shapes)


def _pairs(
    shapes: list, objects: list, is_crowd: bool = False, above: float = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices and the IoUs of the pairs that overlap; of crowds, shares of the shape."""
    parts, step = [np.zeros((3, 0))], MAX_PAIRS // max(1, len(objects)) + 1
    for start in range(0, len(shapes) if objects else 0, step):
        part = coco_mask.iou(shapes[start : start + step], objects, [is_crowd] * len(objects))
        rows, columns = np.nonzero((part > above) & (part >= MAX_BACKGROUND_IOU))
        parts.append(np.stack([rows + start, columns, part[rows, columns]]))
    rows, columns, iou = np.concatenate(parts, axis=1)
    return rows.astype(int), columns.astype(int), iou
