"""Mean average precision against the definition of revisited Oxford, image by image."""

import numpy as np

from xcit_mm.apps.retrieval.ranking import KAPPAS, Judgment, evaluate


def defined(ranking, positives, junk):
    """The average precision and the precisions by their definition, image by image."""
    area, hits, seen, precision, recall = 0.0, 0, 0, 1.0, 0.0
    precisions = dict.fromkeys(KAPPAS)
    for image in ranking:
        if image in junk:
            continue
        seen += 1
        hits += image in positives
        # The curve goes straight from a point to the next one.
        area += (hits / len(positives) - recall) * (precision + hits / seen) / 2
        precision, recall = hits / seen, hits / len(positives)
        for k in KAPPAS:
            if precisions[k] is None and (seen == k or hits == len(positives)):
                precisions[k] = hits / seen
    return [area, *precisions.values()]


def test_random_rankings_with_junk_have_the_defined_quality():
    random = np.random.default_rng(0)
    rankings, judgments, expected = [], [], []
    for query in range(200):
        n = int(random.integers(3, 60))
        ranking, kinds = random.permutation(n), random.integers(0, 4, n)
        kinds[0] = 1
        if query % 10 == 0:
            kinds[kinds == 1] = 0  # such a query is left out
        positives, junk = (np.flatnonzero(kinds == kind) for kind in (1, 2))
        rankings.append(ranking)
        judgments.append(Judgment(positives.tolist(), junk.tolist()))
        if len(positives):
            expected.append(defined(ranking, {*positives}, {*junk}))
    quality = evaluate(rankings, judgments)
    values = [quality.mean_average_precision, *quality.precision.values()]
    np.testing.assert_allclose(values, np.mean(expected, 0), rtol=1e-12)
    assert quality.queries == len(expected) == 180
