"""Tables and pictures of errors against counts by hand."""

import csv
import errno
import logging
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from xcit_mm.predict.errors import error_tables as module
from xcit_mm.predict.errors.error_charts import _short, draw_errors
from xcit_mm.predict.errors.error_tables import ErrorTables, write_counts
from xcit_mm.predict.errors.object_tables import object_tables
from xcit_mm.predict.errors.overlaps import overlaps
from xcit_mm.train.hooks.model_errors import ModelErrorsHook

LEFT, MIDDLE, RIGHT = ([x, 10, 40, 40] for x in (0, 100, 200))
NEAR = [5, 10, 40, 40]  # an IoU of 0.78 with LEFT
CLASSES = ('cell', 'a,"b"\n=1+1', 'none')
IMAGES = [
    # LEFT is found, although a prediction of another class has a higher score there.
    ('1.jpg', [(0.9, 1, LEFT), (0.8, 0, NEAR), (0.2, 1, MIDDLE)], [(0, 0, LEFT), (0, 1, MIDDLE)]),
    # The prediction of another class with the highest score is the partner of MIDDLE.
    ('2.jpg', [(0.6, 0, MIDDLE), (0.7, 2, MIDDLE)], [(0, 1, MIDDLE), (0, 1, RIGHT)]),
    ('3.jpg', [], []),
]
CONFUSION = [[1, 0, 0, 0], [0, 0, 1, 2], [0, 0, 0, 0], [1, 1, 0, 0]]


@pytest.fixture
def tables() -> ErrorTables:
    images = [(name, overlaps(predicted, annotated)) for name, predicted, annotated in IMAGES]
    return object_tables('boxes', CLASSES, images, score_thr=0.3)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def test_tables_of_objects(tables, tmp_path):
    assert tables.confusion.tolist() == CONFUSION
    tables.write(tmp_path / 'boxes')
    with (tmp_path / 'boxes/confusion.csv').open(newline='') as file:
        header, *lines = csv.reader(file)
    names = [*CLASSES, 'no match']
    assert header[1:] == [line[0] for line in lines] == names
    assert [list(map(int, line[1:])) for line in lines] == CONFUSION

    cell, other, none = rows(tmp_path / 'boxes/classes.csv')
    assert (cell['annotated'], cell['predicted']) == ('1', '2')
    assert (cell['TP'], cell['FP'], cell['FN']) == ('1', '1', '0')
    assert (cell['precision'], cell['recall'], cell['F1']) == ('0.5', '1', '0.666667')
    assert (cell['best F1'], cell['score of best F1']) == ('1', '0.8')
    # At a score of 0.3, nothing of this class is found; at 0.2, one of three objects is.
    assert (other['TP'], other['recall'], other['score of best F1']) == ('0', '0', '0.2')
    assert float(other['best F1']) == pytest.approx(2 / 5)
    # MIDDLE of the second image would be found with the right class.
    assert (other['missed'], other['wrong class']) == ('2', '1')
    assert (none['recall'], none['precision'], none['best F1']) == ('', '0', '')

    counted = {(r['image'], r['class']): r for r in rows(tmp_path / 'boxes/counts.csv')}
    assert len(counted) == 9
    numbers = [counted[image, CLASSES[1]] for image in ('1.jpg', '2.jpg', '3.jpg')]
    names = ('annotated', 'predicted', 'correct')
    assert [[r[name] for name in names] for r in numbers] == [[*'110'], [*'200'], [*'000']]
    errors = rows(tmp_path / 'boxes/errors.csv')
    assert [row['error'] for row in errors][-2:] == ['all false', 'all missing']


def test_equal_scores_have_one_threshold():
    objects = overlaps([(0.5, 0, LEFT), (0.5, 0, RIGHT)], [(0, 0, LEFT)])
    (row,) = object_tables('boxes', ('a',), [('image', objects)], 0.3).rows_of_classes()
    assert (row['best F1'], row['score of best F1']) == (pytest.approx(2 / 3), 0.5)


@pytest.mark.parametrize('score', [0.99999964, 0.1234567, 0.0123456789, 0.29])
def test_the_threshold_in_the_file_includes_the_object_of_the_best_f1(score, tmp_path):
    objects = overlaps([(score, 0, LEFT)], [(0, 0, LEFT)])
    object_tables('boxes', ('a',), [('image', objects)], 0.3).write(tmp_path)
    (row,) = rows(tmp_path / 'classes.csv')
    assert score - 2e-6 < float(row['score of best F1']) <= score


def test_of_too_many_rows_those_of_zeros_are_left_out(tmp_path, monkeypatch):
    images = [('1.jpg', {1: (2, math.nan), 2: (0, math.nan)}), ('2.jpg', {})]
    for limit, number in ((7, 6), (6, 1)):
        monkeypatch.setattr(module, 'MAX_ROWS', limit)
        write_counts(tmp_path / 'a.csv', ('a', 'b', 'c'), ('objects', 'area'), images)
        written = rows(tmp_path / 'a.csv')
        assert len(written) == number
        assert {'image': '1.jpg', 'class': 'b', 'objects': '2', 'area': ''} in written


def test_numbers_are_plain_decimals(tmp_path):
    values = 1175812.3273, 123456.7, 12.3456789, 1 / 3, 1e-5, 0.0, 3
    write_counts(tmp_path / 'a.csv', ('a',), list('abcdefg'), [('1.jpg', {0: values})])
    written = (tmp_path / 'a.csv').read_text().splitlines()[1]
    assert written == '1.jpg,a,1175812,123457,12.3457,0.333333,0.00001,0,3'


def test_pictures_show_the_matrix_and_the_costs(tables, tmp_path):
    draw_errors(tables, tmp_path / 'both.png')
    only = ErrorTables('pixels', CLASSES, 'no class', tables.confusion, [])
    draw_errors(only, tmp_path / 'one.png')
    both, one = (Image.open(tmp_path / f'{name}.png') for name in ('both', 'one'))
    assert both.width > one.width > 200
    for picture in (both, one):
        pixels = np.array(picture.convert('RGB')).reshape(-1, 3)
        assert (pixels == (8, 48, 107)).all(1).sum() > 400  # the darkest blue, a share of 1


@pytest.mark.parametrize(
    ('count', 'text'),
    [(9999, '9999'), (12_345, '12.3k'), (999_999, '1M')],
)
def test_large_counts_are_short(count, text):
    assert _short(count) == text


def test_a_table_that_cannot_be_replaced_does_not_end_a_training(tables, tmp_path, caplog):
    (tmp_path / 'errors').write_text('in the way of the folder')
    metric = SimpleNamespace(error_tables=lambda: [tables])
    runner = SimpleNamespace(
        work_dir=str(tmp_path),
        val_loop=SimpleNamespace(evaluator=SimpleNamespace(metrics=[metric])),
        logger=logging.getLogger('test'),
    )
    ModelErrorsHook().after_val_epoch(runner)
    assert 'The errors of the model are not written (' in caplog.text
    metric.error_tables = full_disk
    with pytest.raises(OSError, match='No space left'):
        ModelErrorsHook().after_val_epoch(runner)


def full_disk() -> list[ErrorTables]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_counted_adds_up(tables):
    by_class = tables.rows_of_classes()
    for i, row in enumerate(by_class):
        assert row['annotated'] == sum(label == i for *_, a in IMAGES for _, label, _ in a)
        shown = [label for _, p, _ in IMAGES for score, label, _ in p if score >= 0.3]
        assert row['predicted'] == shown.count(i)
        of_images = [numbers.get(i, (0, 0, 0)) for _, numbers in tables.images]
        assert np.sum(of_images, axis=0).tolist() == [
            row[k] for k in ('annotated', 'predicted', 'TP')
        ]
