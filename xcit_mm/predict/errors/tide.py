"""The kinds of errors of a detector, and their costs in AP50: TIDE, arXiv 2008.08115.

The costs equal the results of the authors' package, tidecv.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .overlaps import FOUND, MAX_BACKGROUND_IOU, Overlaps, matched

# The kinds of errors (section 2.2), and what each one is.
CLASS, PLACE, BOTH, DUPLICATE, ON_BACKGROUND = range(5)
ERROR_KINDS = {
    'wrong class': 'on an object of another class',
    'wrong place': 'on an object of its class, but with an IoU of 0.1 to 0.5',
    'both wrong': 'on an object of another class, and with such an IoU',
    'duplicate': 'on an object that a prediction with a higher score has found',
    'background': 'on no object',
    'missed': 'an object that no prediction has found, nor would with the right class or place',
}
FALSE, MISSING = 'all false', 'all missing'  # predictions; objects (section 2.4)
CORRECT = -1
NEVER = -np.inf  # the score from which an object that no prediction finds is found
RECALLS = np.array([i / 100 for i in range(101)])


class Judgment(NamedTuple):
    """The kinds of errors of n predictions, and which of m annotated objects are found.

    Attributes:
        scores: (n,)
        predicted: (n,), the classes of the predictions.
        kinds: (n,), ``CORRECT`` or an index into ``ERROR_KINDS``.
        right: (n,), the class of the object that an error would find without it; -1 for an error
            that finds nothing new.
        counts: (n,) bool, False for a prediction in a crowd, which is neither right nor wrong.
        annotated: (m,), the classes of the annotated objects.
        found: (m,), the score of the prediction that finds an object, or ``NEVER``.
        near: (m,), the highest score of the errors of class and place that would find an object
            which is not found, or ``NEVER``.
    """

    scores: np.ndarray
    predicted: np.ndarray
    kinds: np.ndarray
    right: np.ndarray
    counts: np.ndarray
    annotated: np.ndarray
    found: np.ndarray
    near: np.ndarray


def judge(objects: Overlaps) -> Judgment:
    """Judge the predictions for an image.

    As in COCO's evaluation, a prediction finds the object of its class with the highest IoU, if it
    is at least 0.5, among the objects that no prediction with a higher score has found.
    """
    pairs, iou, is_same = objects.pairs, objects.iou, objects.is_same_class
    n, m = len(objects.scores), len(objects.annotated)
    found, near = np.full(m, NEVER), np.full(m, NEVER)
    hits = matched(pairs[is_same & (iou >= FOUND)].tolist())
    predictions, annotations = list(hits), list(hits.values())
    found[annotations] = objects.scores[predictions]

    own, nearest = _best(pairs[is_same], iou[is_same], n)
    other, mistaken = _best(pairs[~is_same], iou[~is_same], n)
    is_used = is_same & (found > NEVER)[pairs[:, 1]]
    used, _ = _best(pairs[is_used], iou[is_used], n)
    kinds = np.select(
        [
            (own >= MAX_BACKGROUND_IOU) & (own <= FOUND),
            other >= FOUND,
            used >= FOUND,
            np.maximum(own, other) <= MAX_BACKGROUND_IOU,
        ],
        [PLACE, CLASS, DUPLICATE, ON_BACKGROUND],
        BOTH,
    )
    kinds[predictions] = CORRECT

    right = np.full(n, -1)
    target = np.select([kinds == PLACE, kinds == CLASS], [nearest, mistaken], -1)
    for i in np.flatnonzero(target >= 0):  # from the highest score to the lowest
        if found[target[i]] == near[target[i]] == NEVER:
            near[target[i]] = objects.scores[i]
            right[i] = objects.annotated[target[i]]
    counts = (kinds == CORRECT) | ~objects.in_crowd
    return Judgment(
        objects.scores, objects.predicted, kinds, right, counts, objects.annotated, found, near
    )


def joined(images: Sequence[Judgment]) -> Judgment:
    """Join the judgments of images, of which there is at least one."""
    return Judgment(*(np.concatenate(values) for values in zip(*images, strict=True)))


def costs(judged: Judgment, num_classes: int) -> dict[str, float]:
    """Return how much AP50 a detector would gain without each kind of error, from 0 to 1.

    These are the dAP of section 2.3 for each of ``ERROR_KINDS``, and of section 2.4 for ``FALSE``
    (without any false prediction) and ``MISSING`` (if no object were missing).
    """
    numbers = np.bincount(judged.annotated, minlength=num_classes)
    is_true = judged.kinds == CORRECT
    now = _mean_precision(judged.scores, judged.predicted, is_true, judged.counts, numbers)
    gains = {}
    for kind, name in enumerate(ERROR_KINDS):
        is_fixed = (judged.kinds == kind) & (judged.right >= 0)
        is_counted = np.where(judged.kinds == kind, is_fixed, judged.counts)
        classes = np.where(is_fixed, judged.right, judged.predicted)
        left = numbers
        if name == 'missed':
            is_missed = np.maximum(judged.found, judged.near) == NEVER
            left = numbers - np.bincount(judged.annotated[is_missed], minlength=num_classes)
        fixed = _mean_precision(judged.scores, classes, is_true | is_fixed, is_counted, left)
        # Where it is negative, the 101 recalls are the reason, at which the precision is read.
        gains[name] = max(fixed - now, 0.0)
    numbers_found = np.bincount(judged.annotated[judged.found > NEVER], minlength=num_classes)
    common = judged.predicted, is_true, judged.counts
    gains[FALSE] = _mean_precision(is_true.astype(float), *common, numbers) - now
    gains[MISSING] = _mean_precision(judged.scores, *common, numbers_found) - now
    return gains


def _best(pairs: np.ndarray, iou: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the highest IoU of each of n predictions, 0 for none, and with which annotation."""
    best, index = np.zeros(n), np.full(n, -1)
    rows, first = np.unique(pairs[:, 0], return_index=True)
    best[rows], index[rows] = iou[first], pairs[first, 1]
    return best, index


def _mean_precision(
    scores: np.ndarray,
    classes: np.ndarray,
    is_true: np.ndarray,
    is_counted: np.ndarray,
    numbers: np.ndarray,
) -> float:
    """Return the mean over the classes that are annotated or predicted of their AP, 0 to 1.

    ``numbers`` are the annotated objects of each class.
    """
    order = np.lexsort((-scores[is_counted], classes[is_counted]))
    classes, is_true = classes[is_counted][order], is_true[is_counted][order]
    ends = np.searchsorted(classes, np.arange(len(numbers) + 1))
    precisions = [
        _average_precision(is_true[start:end], number)
        for start, end, number in zip(ends[:-1], ends[1:], numbers.tolist(), strict=True)
        if end > start or number
    ]
    return float(np.mean(precisions)) if precisions else 0.0


def _average_precision(is_true: np.ndarray, number: int) -> float:
    """Return COCO's AP of predictions in the order of their scores, and a number of objects."""
    if not number:
        return 0.0
    hits = np.cumsum(is_true)
    precision = hits / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(hits / number, RECALLS)
    return float(precision[places[places < len(precision)]].sum() / len(RECALLS))
