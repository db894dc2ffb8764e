"""The measures of retrieval benchmarks: mean average precision, and precision among the first."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

AMONG = (1, 5, 10)  # first images whose precision is measured


class Relevant(NamedTuple):
    """The images that a query should find, and those that do not count; both are indices."""

    positive: Sequence[int]
    junk: Sequence[int] = ()


def average_precision(ranking: Sequence[int], relevant: Relevant) -> float:
    """Return the average precision of a ranking, from 0 to 1.

    It is the area under the curve of precision over recall by the trapezoidal rule, as in the
    benchmarks of Oxford and Paris (Philbin et al. 2007; revisited in arXiv 1803.11285). Junk is
    removed from the ranking.

    Args:
        ranking: Indices of images, the best first.
        relevant: What the query should find, at least one image.
    """
    places = _places(ranking, relevant)
    found = np.arange(len(places))
    before = np.where(places == 0, 1.0, found / np.maximum(places, 1))
    after = (found + 1) / (places + 1)
    return float((before + after).sum() / 2 / len(relevant.positive))


def precision_among(ranking: Sequence[int], relevant: Relevant, number: int) -> float:
    """Return the share of positive images among the first ``number``, without junk.

    If the last positive image comes earlier, only the images up to it count (arXiv 1803.11285).
    """
    places = _places(ranking, relevant) + 1
    if not len(places):
        return 0.0
    number = min(int(places.max()), number)
    return float((places <= number).sum() / number)


def mean_measures(
    rankings: Sequence[Sequence[int]], relevants: Sequence[Relevant]
) -> dict[str, float]:
    """Return ``mAP``, ``mP@1``, ``mP@5`` and ``mP@10`` in percent, and the number of queries.

    Queries without a positive image do not count.
    """
    pairs = [p for p in zip(rankings, relevants, strict=True) if len(p[1].positive)]
    measures = {'mAP': [average_precision(*pair) for pair in pairs]}
    measures |= {f'mP@{n}': [precision_among(*pair, n) for pair in pairs] for n in AMONG}
    means = {name: float(100 * np.mean(values)) for name, values in measures.items() if values}
    return means | dict(queries=len(pairs))


def _places(ranking: Sequence[int], relevant: Relevant) -> np.ndarray:
    """Return the places, from 0, of the positive images in a ranking without junk."""
    ranking = np.asarray(ranking)
    kept = ranking[~np.isin(ranking, np.asarray(relevant.junk, int))]
    return np.flatnonzero(np.isin(kept, np.asarray(relevant.positive, int)))
