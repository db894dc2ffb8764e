"""The costs of errors are those of tidecv, and each kind of error is recognized."""

import json

import numpy as np
import pytest
from helpers import DATA
from helpers.crowded_scenes import (
    CATEGORIES,
    HEIGHT,
    WIDTH,
    crowded_scenes,
    with_different_scores,
)
from pycocotools import mask as coco_mask

from xcit_mm.predict.errors import overlaps as module
from xcit_mm.predict.errors.object_tables import object_tables
from xcit_mm.predict.errors.overlaps import Overlaps, overlaps
from xcit_mm.predict.errors.tide import costs, joined, judge

EXPECTED = json.loads((DATA / 'tide.json').read_text())  # of tests/helpers/tide_values.py
BOX = [10, 10, 40, 40]


def objects_of(truth: dict, predictions: list[dict], kind: str) -> list[Overlaps]:
    def shape(entry: dict) -> object:
        mask = entry['segmentation']
        if kind == 'bbox' or not isinstance(mask, list):
            return entry['bbox'] if kind == 'bbox' else mask
        return coco_mask.merge(coco_mask.frPyObjects(mask, HEIGHT, WIDTH))

    def of_image(entries: list[dict], image: dict, field: str) -> list[tuple]:
        chosen = [entry for entry in entries if entry['image_id'] == image['id']]
        return [(e[field], CATEGORIES.index(e['category_id']), shape(e)) for e in chosen]

    return [
        overlaps(
            of_image(predictions, image, 'score'),
            of_image(truth['annotations'], image, 'iscrowd'),
        )
        for image in truth['images']
    ]


@pytest.mark.parametrize('case', EXPECTED)
def test_costs_are_those_of_tidecv(case):
    kind, seed = case.split()
    truth, predictions = crowded_scenes(int(seed))
    images = objects_of(truth, with_different_scores(predictions), kind)
    expected = {name: value for name, value in EXPECTED[case].items() if name != 'AP50'}
    assert sum(value > 1e-3 for value in expected.values()) >= 5
    actual = costs(joined([judge(objects) for objects in images]), len(CATEGORIES))
    assert actual == pytest.approx(expected, abs=1e-9)


def test_pairs_of_a_large_scene_are_found_in_parts(monkeypatch):
    truth, predictions = crowded_scenes(0)
    expected = objects_of(truth, predictions, 'bbox')
    monkeypatch.setattr(module, 'MAX_PAIRS', 7)
    for a, b in zip(objects_of(truth, predictions, 'bbox'), expected, strict=True):
        assert all(map(np.array_equal, a, b))


def moved(pixels: float) -> list[float]:
    return [BOX[0] + pixels, *BOX[1:]]


# The IoU of BOX with itself moved by 20 pixels is a third.
@pytest.mark.parametrize(
    ('predictions', 'kinds'),
    [
        ([(0.9, 0, BOX)], {}),
        ([(0.9, 1, BOX)], {'wrong class': 1}),
        ([(0.9, 0, moved(20))], {'wrong place': 1}),
        ([(0.9, 1, moved(20))], {'both wrong': 1, 'missed': 1}),
        ([(0.9, 0, BOX), (0.8, 0, moved(1))], {'duplicate': 1}),
        ([(0.8, 0, moved(1)), (0.9, 0, BOX)], {'duplicate': 1}),
        ([(0.9, 0, [100, 100, 5, 5])], {'background': 1, 'missed': 1}),
        ([(0.1, 0, BOX)], {'missed': 1}),
        ([(0.1, 1, BOX), (0.9, 1, moved(20))], {'both wrong': 1, 'missed': 1}),
        ([], {'missed': 1}),
        # An object that has a crowd around it does not count; that crowd is of class 1.
        ([(0.9, 0, BOX), (0.9, 1, [110, 110, 5, 5])], {}),
    ],
)
def test_an_error_has_a_kind(predictions, kinds):
    objects = overlaps(predictions, [(0, 0, BOX), (1, 1, [105, 105, 30, 30])])
    tables = object_tables('boxes', ('a', 'b'), [('image', objects)], score_thr=0.3)
    column = 'with a score of 0.3'
    actual = {row['error']: row[column] for row in tables.costs[:-2] if row[column]}
    assert actual == kinds
    by_class = {name: np.sum(values) for name, values in tables.by_class.items() if name in kinds}
    assert by_class == kinds


def test_the_first_of_several_errors_at_an_object_is_what_it_costs():
    """Without its error the object is found once."""
    objects = overlaps([(0.9, 1, BOX), (0.8, 1, BOX), (0.7, 0, moved(20))], [(0, 0, BOX)])
    judged = judge(objects)
    assert judged.right.tolist() == [0, -1, -1]
    # Class b, which is only predicted, has an AP of 0 until nothing is predicted for it.
    assert costs(judged, 2) == pytest.approx(
        {
            **{'wrong class': 1, 'wrong place': 0, 'both wrong': 0, 'duplicate': 0},
            **{'background': 0, 'missed': 0, 'all false': 0, 'all missing': 0},
        }
    )


def test_a_dataset_without_objects_and_predictions_costs_nothing():
    assert set(costs(judge(overlaps([], [])), 3).values()) == {0}
