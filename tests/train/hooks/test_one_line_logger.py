"""A validation is one line of the log, with the best value so far."""

import json
import re
from pathlib import Path

import pytest
from helpers.evaluated_runs import evaluated_run, resumed_run

from xcit_mm.train.report.tables import summary

SCORES = [0, 0, 0.3, 0, 0.5, 0, 0.4, 0, 0.2, 0, 0.6]
LOGGED = {
    'default_hooks.logger.type': 'OneLineLoggerHook',
    'log_level': 'INFO',
    'model.scores': SCORES,
}


def validations(work_dir: Path) -> list[str]:
    """The lines of all validations, without their seconds."""
    text = ''.join(path.read_text() for path in sorted(work_dir.glob('*/*.log')))
    assert 'Epoch(val) [0][10/10]    mIoU' not in text
    return re.findall(r'Validation (.*), [\d.]+ s$', text, re.MULTILINE)


def test_the_best_value_stays_known_after_a_resume(tmp_path):
    evaluated_run(tmp_path, steps=4, **LOGGED).train()
    resumed_run(tmp_path, steps=6, **LOGGED).train()
    assert validations(tmp_path) == [
        'at 2 of 4: mIoU 0.3, mAcc 0.5',
        'at 4 of 4: mIoU 0.5, mAcc 0.5 (best mIoU 0.5 at 4)',
        'at 4 of 6: mIoU 0.5, mAcc 0.5 (best mIoU 0.5 at 4)',  # repeated
        'at 6 of 6: mIoU 0.4, mAcc 0.5 (best mIoU 0.5 at 4)',
    ]
    written = [path.read_text() for path in tmp_path.glob('*/vis_data/scalars.json')]
    lines = [json.loads(line) for text in written for line in text.splitlines()]
    assert sum('mIoU' in line for line in lines) == 4  # what scripts read of mmengine


def test_epochs_are_counted_where_a_run_has_them_and_less_may_be_better(tmp_path):
    rule = {f'default_hooks.checkpoint.{k}': v for k, v in dict(rule='less').items()}
    rule['default_hooks.checkpoint.save_best'] = 'mAcc'
    scores = {'model.scores': [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1]}
    evaluated_run(tmp_path, by_epoch=True, **LOGGED | scores | rule).train()
    assert validations(tmp_path) == [
        'at epoch 1 of 2: mAcc 0.5, mIoU 0.6',
        'at epoch 2 of 2: mAcc 0.5, mIoU 1.1 (best mAcc 0.5 at 1)',
    ]


@pytest.mark.parametrize('first', [None, 'coco/segm_mAP'])
def test_a_line_has_no_metrics_of_classes_and_sizes(first):
    items = 'mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'AP_cat', 'AP50_cat'
    metrics = {f'coco/{kind}_{item}': 0.12345 for kind in ('bbox', 'segm') for item in items}
    metrics |= {'coco/bbox_mAP_50': -1.0, 'coco/cat_precision': 0.5, 'IoU_cat': 50.0}
    words = ['bbox_mAP 0.1235', 'bbox_mAP_50 -', 'segm_mAP 0.1235', 'segm_mAP_50 0.1235']
    if first:
        words.insert(0, words.pop(2))
    assert summary(metrics, first) == ', '.join(words)
