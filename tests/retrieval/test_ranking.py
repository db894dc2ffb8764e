"""Mean average precision against a direct implementation of the benchmark's definition."""

import numpy as np
import pytest

from xcit_mm.retrieval.ranking import (
    Relevant,
    average_precision,
    mean_measures,
    precision_among,
)


def by_definition(ranking, positive, junk):
    """The area under precision over recall: a trapezoid for each positive image."""
    area, hits, shown, precision = 0.0, 0, 0, 1.0
    for image in ranking:
        if image in junk:
            continue
        # The precision before this image, as it is drawn in the curve.
        precision = hits / shown if shown else 1.0
        shown += 1
        if image in positive:
            hits += 1
            area += (precision + hits / shown) / 2 / len(positive)
    return area


def random_query(rng, number=60):
    kinds = rng.choice(3, number, p=(0.6, 0.25, 0.15))
    positive, junk = (np.flatnonzero(kinds == kind).tolist() for kind in (1, 2))
    return rng.permutation(number).tolist(), Relevant(positive or [0], junk)


@pytest.mark.parametrize('seed', range(20))
def test_average_precision_follows_the_definition(seed):
    ranking, relevant = random_query(np.random.default_rng(seed))
    expected = by_definition(ranking, set(relevant.positive), set(relevant.junk))
    assert average_precision(ranking, relevant) == pytest.approx(expected, abs=1e-12)


def test_a_perfect_ranking_and_the_worst():
    assert average_precision([3, 1, 0, 2], Relevant([3, 1])) == 1
    assert average_precision([9, 3, 1, 0, 2], Relevant([3, 1], [9])) == 1
    # One positive image in the last of four places: a trapezoid from 0 to 1/4.
    assert average_precision([0, 1, 2, 3], Relevant([3])) == pytest.approx(1 / 8)


def test_precision_counts_up_to_the_last_positive_image():
    ranking = [5, 0, 1, 2, 3]
    assert precision_among(ranking, Relevant([5, 1]), 1) == 1
    assert precision_among(ranking, Relevant([5, 1]), 5) == pytest.approx(2 / 3)
    assert precision_among(ranking, Relevant([5, 1], [0]), 5) == 1


def test_queries_without_a_positive_image_do_not_count():
    relevants = [Relevant([0]), Relevant([], [1])]
    measures = mean_measures([[0, 1], [1, 0]], relevants)
    assert measures == {'mAP': 100, 'mP@1': 100, 'mP@5': 100, 'mP@10': 100, 'queries': 1}
