"""Errors of heights against a plain count."""

import numpy as np
import pytest
import torch
from mmengine.registry import METRICS

from xcit_mm.base.environment import require_framework
from xcit_mm.train.report.tables import metrics_table


@pytest.fixture(autouse=True, scope='module')
def _registered():
    require_framework('mmseg')


def evaluate(pairs, **options) -> dict[str, float]:
    metric = METRICS.build(dict(type='HeightMetric', **options))
    for predicted, heights in pairs:
        maps = dict(pred_depth_map=predicted, gt_depth_map=heights)
        sample = {k: dict(data=torch.from_numpy(np.float32(v))[None]) for k, v in maps.items()}
        metric.process({}, [sample])
    return metric.evaluate(len(pairs))


def test_errors_are_of_all_labeled_pixels_of_the_dataset():
    rng = np.random.default_rng(0)
    pairs = []
    for size in ((13, 17), (40, 9), (5, 5)):
        heights = rng.normal(scale=5, size=size).astype(np.float32)
        heights[rng.random(size) < 0.2] = np.nan
        pairs.append((heights + rng.normal(size=size).astype(np.float32), heights))
    pairs[0][0][np.isnan(pairs[0][1])] = 1.0
    pairs[2][1][:] = np.nan  # an image without labels
    metrics = evaluate(pairs)
    predicted, heights = (
        np.concatenate([x.ravel() for x in part]) for part in zip(*pairs, strict=True)
    )
    predicted, heights = (x[~np.isnan(heights)].astype(float) for x in (predicted, heights))
    assert metrics['height/MAE'] == pytest.approx(np.abs(predicted - heights).mean())
    assert metrics['height/RMSE'] == pytest.approx(np.sqrt(((predicted - heights) ** 2).mean()))
    p, h = predicted[heights > 0], heights[heights > 0]
    with np.errstate(divide='ignore'):
        is_near = (p > 0) & (np.maximum(p / h, h / p) <= 1.25)
    assert metrics['height/delta1'] == pytest.approx(100 * is_near.mean())
    assert metrics.keys() == {'height/MAE', 'height/RMSE', 'height/delta1'}


def test_without_positive_labels_there_is_no_share_and_without_labels_nothing():
    assert evaluate([(np.zeros((2, 2)), np.full((2, 2), -2.0))]).keys() == {
        'height/MAE',
        'height/RMSE',
    }
    assert evaluate([(np.zeros((2, 2)), np.full((2, 2), np.nan))]) == {}


def test_steps_at_the_borders_of_tiles_are_told_from_those_inside():
    heights = np.zeros((8, 8))
    heights[:, 4:] = 10  # a wall at a border is no seam
    predicted = heights.copy()
    predicted[3:] += 1.5
    predicted[4:] += 4
    metrics = evaluate([(predicted, heights), (heights, heights)], tile=4)
    assert metrics['height/step'] == pytest.approx(4)
    assert metrics['height/step_inside'] == pytest.approx(1.5)
    lines = metrics_table(metrics).splitlines()
    assert lines[0].split() == ['MAE', 'RMSE', 'delta1', 'step', 'inside']
    assert lines[1].split()[0] == 'heights'
