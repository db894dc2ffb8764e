"""Quality of rankings: mean average precision and precision, as defined by revisited Oxford.

Radenović et al., "Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking",
arXiv 1803.11285.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

KAPPAS = 1, 5, 10  # values of k for the precision at k

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


class Judgment(NamedTuple):
    """The ground truth of a query, as indices of images.

    Junk images are removed from a ranking before it is evaluated.
    """

    positives: Sequence[int]
    junk: Sequence[int]


class Quality(NamedTuple):
    """The means over queries, from 0 to 1, and the number of queries that have positives."""

    mean_average_precision: float
    precision: dict[int, float]  # at each of KAPPAS
    queries: int


@dataclass
class Benchmark:
    """Images, queries, and the ground truth of each query.

    Attributes:
        images: The paths of the images that are ranked.
        queries: The paths of the queries.
        judgments: For each setting, one judgment per query.
        boxes: The part of each query image to use. Empty: the queries are among the images, and
            the whole image is used.
        is_whole: Whether it has as many images and queries as the published benchmark.
    """

    images: list[str]
    queries: list[str]
    judgments: dict[str, list[Judgment]]
    boxes: list[Box] = field(default_factory=list)
    is_whole: bool = False


def evaluate(rankings: Sequence[np.ndarray], judgments: Sequence[Judgment]) -> Quality:
    """Return the quality of rankings.

    Args:
        rankings: For each query, the indices of all images, the most similar first.
        judgments: One per query. Queries without positives are left out.

    Returns:
        The means, which are NaN if no query has positives.
    """
    values = []
    for ranking, (positives, junk) in zip(rankings, judgments, strict=True):
        if len(positives):
            ranking = ranking[~np.isin(ranking, junk)]
            places = np.flatnonzero(np.isin(ranking, positives))
            values.append([average_precision(places, len(positives)), *_precisions(places)])
    means = np.mean(values, 0) if values else np.full(1 + len(KAPPAS), np.nan)
    precision = dict(zip(KAPPAS, map(float, means[1:]), strict=True))
    return Quality(float(means[0]), precision, len(values))


def average_precision(places: np.ndarray, num_positives: int) -> float:
    """Return the area under the precision-recall curve by the trapezoid rule.

    Args:
        places: The positions of the positives in the ranking, from 0, in ascending order.
        num_positives: The number of positives of the query. Positives that are not in the ranking
            count as never found.
    """
    hits = np.arange(len(places))
    before = np.where(places == 0, 1, hits / np.maximum(places, 1))
    after = (hits + 1) / (places + 1)
    return float(np.sum(before + after) / (2 * num_positives))


def _precisions(places: np.ndarray) -> list[float]:
    """Return the precision at each k, or at the rank of the last positive if that is lower."""
    if not len(places):
        return [0.0] * len(KAPPAS)
    cuts = [min(k, int(places[-1]) + 1) for k in KAPPAS]
    return [float(np.sum(places < cut) / cut) for cut in cuts]
