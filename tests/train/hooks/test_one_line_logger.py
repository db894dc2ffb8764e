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


def logged(work_dir: Path) -> str:
    return ''.join(path.read_text() for path in sorted(work_dir.glob('*/*.log')))


@pytest.mark.parametrize(('interval', 'iters'), [(3, [1, 3, 4, 6]), (1, [*range(1, 7)])])
def test_the_first_iteration_of_each_run_is_logged_once(tmp_path, interval, iters):
    """And nothing else in the files that hold the losses."""
    short = {**LOGGED, 'default_hooks.logger.interval': interval, 'val_cfg': None}
    short |= dict(val_dataloader=None, val_evaluator=None)
    evaluated_run(tmp_path, steps=3, **short).train()
    resumed_run(tmp_path, steps=6, **short).train()
    lines = re.findall(r'\[ *(\d+)/\d+\].*eta: .*loss: ', logged(tmp_path))
    assert list(map(int, lines)) == iters
    written = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert written == list(range(interval, 7, interval))


def test_a_line_has_what_is_told_twice_only_once(tmp_path):
    """A learning rate, and a best checkpoint that is replaced."""
    best = {'default_hooks.checkpoint.save_best': 'mIoU', 'model.scores': list(range(11))}
    groups = {'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(norm=dict(lr_mult=0.5)))}
    for name, options, number in (('same', {}, 0), ('other', groups, 8)):
        evaluated_run(tmp_path / name, **LOGGED | best | options | {'log_processor': {}}).train()
        text = logged(tmp_path / name)
        assert len(re.findall(r'\d\]\s+lr: 1.0000e-01  eta', text)) == 8 - number
        assert len(re.findall(r'base_lr: 1.0000e-01 lr: 5.0000e-02', text)) == number
        assert 'The best checkpoint with' in text and 'previous best' not in text


@pytest.mark.parametrize('first', [None, 'coco/segm_mAP'])
def test_a_line_has_no_metrics_of_classes_and_sizes(first):
    items = 'mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'AP_cat', 'AP50_cat'
    metrics = {f'coco/{kind}_{item}': 0.12345 for kind in ('bbox', 'segm') for item in items}
    metrics |= {'coco/bbox_mAP_50': -1.0, 'coco/cat_precision': 0.5, 'IoU_cat': 50.0}
    words = ['bbox_mAP 0.1235', 'bbox_mAP_50 -', 'segm_mAP 0.1235', 'segm_mAP_50 0.1235']
    if first:
        words.insert(0, words.pop(2))
    assert summary(metrics, first) == ', '.join(words)
