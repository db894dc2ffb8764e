"""The errors of a detector as tables, at a threshold of the scores."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from .error_tables import ErrorTables
from .overlaps import FOUND, Overlaps, matched
from .tide import CORRECT, ERROR_KINDS, FALSE, MISSING, Judgment, costs, joined, judge

NO_MATCH = 'no match'  # unlike the errors on the background, which a low score has, too
MEANINGS = ERROR_KINDS | {
    FALSE: 'every prediction that finds no object',
    MISSING: 'every object not found',
}


def object_tables(
    of: str, classes: tuple[str, ...], images: Iterable[tuple[str, Overlaps]], score_thr: float
) -> ErrorTables:
    """Return the errors of a detector on the images of a dataset.

    A prediction and an annotation of different classes are a pair in the confusion matrix if
    neither finds a partner of its own class and their IoU is at least 0.5; the prediction with the
    highest score chooses first. So the diagonal counts what COCO's evaluation counts as true.

    Args:
        of: 'boxes' or 'masks'.
        classes: Names of the classes.
        images: The name of each image, and its objects.
        score_thr: Predictions with at least this score are counted. Only the costs of errors and
            the best thresholds belong to all predictions.
    """
    number = len(classes)
    confusion, judgments, counted = np.zeros((number + 1, number + 1), int), [], []
    for name, objects in images:
        judged = judge(objects)
        annotated, predicted = _partners(objects, judged, score_thr, number)
        np.add.at(confusion, (annotated, predicted), 1)
        judgments.append(judged)
        counted.append((name, _counts(annotated, predicted, number)))
    judged = joined(judgments)
    by_kind = {
        name: np.bincount(labels, minlength=number)
        for name, labels in _classes_by_kind(judged, score_thr).items()
        if name in ERROR_KINDS
    }
    return ErrorTables(
        of=of,
        classes=classes,
        rest=NO_MATCH,
        confusion=confusion,
        images=counted,
        score_thr=score_thr,
        by_class=_best_thresholds(judged, number) | by_kind,
        costs=_rows_of_costs(judged, number, score_thr),
    )


def _partners(
    objects: Overlaps, judged: Judgment, score_thr: float, rest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the annotated and the predicted class of each pair, and ``rest`` for no partner."""
    is_shown, is_found = judged.scores >= score_thr, judged.found >= score_thr
    hits = judged.annotated[is_found]
    is_false = is_shown & judged.counts & (judged.kinds != CORRECT)
    is_pair = is_false[objects.pairs[:, 0]] & (objects.iou >= FOUND)
    pairs = matched(objects.pairs[is_pair].tolist(), np.flatnonzero(is_found).tolist())
    predictions, annotations = np.array([*pairs.items()], int).reshape(-1, 2).T
    is_missed = ~is_found
    is_false[predictions] = is_missed[annotations] = False
    alone, missed = judged.predicted[is_false], judged.annotated[is_missed]
    annotated = [hits, judged.annotated[annotations], np.full(len(alone), rest), missed]
    predicted = [hits, judged.predicted[predictions], alone, np.full(len(missed), rest)]
    return np.concatenate(annotated), np.concatenate(predicted)


def _counts(
    annotated: np.ndarray, predicted: np.ndarray, rest: int
) -> dict[int, tuple[int, int, int]]:
    """Return the annotated, predicted and correct numbers by class."""
    counters = map(Counter, (annotated.tolist(), predicted.tolist()))
    counters = [*counters, Counter(annotated[annotated == predicted].tolist())]
    present = {*annotated.tolist(), *predicted.tolist()} - {rest}
    return {i: tuple(counter[i] for counter in counters) for i in present}


def _best_thresholds(judged: Judgment, number: int) -> dict[str, list[float]]:
    """Return for each class the highest F1 of all thresholds, and the threshold."""
    thresholds, values = [], []
    numbers = np.bincount(judged.annotated, minlength=number)
    for i in range(number):
        chosen = judged.counts & (judged.predicted == i)
        order = np.argsort(-judged.scores[chosen], kind='stable')
        scores = judged.scores[chosen][order]
        hits = np.cumsum(judged.kinds[chosen][order] == CORRECT)
        f1 = 2 * hits / (np.arange(1, len(hits) + 1) + numbers[i])
        # A threshold cannot lie between equal scores.
        f1[:-1][scores[:-1] == scores[1:]] = 0
        best = int(f1.argmax()) if hits.any() else None
        thresholds.append(np.nan if best is None else _rounded_down(float(scores[best])))
        values.append(np.nan if best is None else float(f1[best]))
    return {'best F1': values, 'score of best F1': thresholds}


def _rounded_down(score: float) -> float:
    """Return the six decimals that a table shows, which are not above the score itself."""
    rounded = round(score, 6)
    return rounded - 1e-6 if rounded > score else rounded


def _classes_by_kind(judged: Judgment, score_thr: float) -> dict[str, np.ndarray]:
    """Return for each kind of error the class of every error at a threshold."""
    is_shown = judged.counts & (judged.scores >= score_thr)
    classes = {
        name: judged.predicted[is_shown & (judged.kinds == i)] for i, name in enumerate(ERROR_KINDS)
    }
    is_missed = np.maximum(judged.found, judged.near) < score_thr
    is_false = is_shown & (judged.kinds != CORRECT)
    return classes | {
        'missed': judged.annotated[is_missed],
        FALSE: judged.predicted[is_false],
        MISSING: judged.annotated[judged.found < score_thr],
    }


def _rows_of_costs(judged: Judgment, number: int, score_thr: float) -> list[dict[str, Any]]:
    every, shown = (_classes_by_kind(judged, threshold) for threshold in (0, score_thr))
    return [
        {
            'error': name,
            'cost in AP50': cost,
            'number': len(every[name]),
            f'with a score of {score_thr:g}': len(shown[name]),
            'meaning': MEANINGS[name],
        }
        for name, cost in costs(judged, number).items()
    ]
