"""Runs that stop when their validations no longer improve, with and without interruptions."""

import json
from pathlib import Path

import pytest
import torch
from helpers.evaluated_runs import evaluated_run, resumed_run
from helpers.resumed_runs import StopHook
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.config.adapt import adapt
from xcit_mm.train.hooks.early_stopping import ResumableEarlyStoppingHook

# Validated after every second step: the best is 0.5 after the fourth.
SCORES = [0, 0, 0.3, 0, 0.5, 0, 0.5, 0, 0.505, 0, 0.45, 0, 0.9]
SENTENCE = 'mIoU has not improved on 0.5 of iteration 4 in 3 validations (iteration 10)'
BEST = {'default_hooks.checkpoint.save_best': 'mIoU', 'default_hooks.checkpoint.interval': 4}


def hook(**kwargs) -> dict:
    return dict(type='ResumableEarlyStoppingHook', monitor='mIoU', patience=3) | kwargs


def run(work_dir: Path, make=evaluated_run, stop: int | None = None, hooks=None, **kwargs):
    model = {'model.scores': SCORES, 'steps': 12, 'log_level': 'INFO'}
    hooks = [hook(min_delta=0.01), 'ReportHook'] if hooks is None else hooks
    runner = make(work_dir, *hooks, **model, **BEST, **kwargs)
    if stop is None:
        runner.train()
    else:
        runner.register_hook(StopHook(stop))
        with pytest.raises(RuntimeError, match='planted'):
            runner.train()
    return runner


@pytest.fixture(scope='module')
def stopped(tmp_path_factory) -> Path:
    """The work dir of a run that has stopped early."""
    work_dir = tmp_path_factory.mktemp('stopped')
    assert run(work_dir).iter == 10
    return work_dir


def files(work_dir: Path) -> dict[str, str]:
    return {name: (work_dir / name).read_text() for name in ('losses.jsonl', 'metrics.jsonl')}


def log(work_dir: Path) -> str:
    return ''.join(path.read_text() for path in sorted(work_dir.glob('*/*.log')))


def test_a_run_stops_and_says_why_and_where_its_best_checkpoint_is(stopped):
    text = log(stopped)
    assert f'The training stopped early: {SENTENCE}.' in text
    assert f'best        {stopped / "best.pth"} (best_mIoU_iter_8.pth, mIoU 0.505)' in text
    # The interval does not write the last one.
    assert f'last        {stopped / "last.pth"} (iter_10.pth, mIoU 0.45)' in text
    assert [json.loads(line)['iter'] for line in (stopped / 'metrics.jsonl').open()] == [
        2,
        4,
        6,
        8,
        10,
    ]
    assert json.loads((stopped / 'run.json').read_text())['stopped_early'] == SENTENCE
    assert f'The training stopped early: {SENTENCE}.' in (stopped / 'report.html').read_text()


@pytest.mark.parametrize('kill', [5, 9])
def test_a_resumed_run_stops_where_an_uninterrupted_one_does(tmp_path, stopped, kill):
    """Resumed at 4 and 8, whose validations the resume repeats, with none and two to wait for."""
    run(tmp_path, stop=kill)
    assert run(tmp_path, resumed_run).iter == 10
    assert files(tmp_path) == files(stopped)
    weights = [torch.load(f / 'iter_10.pth', weights_only=False) for f in (tmp_path, stopped)]
    assert torch.equal(*(w['state_dict']['linear.weight'] for w in weights))
    scores = [w['message_hub']['runtime_info']['validation_scores'] for w in weights]
    assert scores[0] == scores[1] == pytest.approx({i: SCORES[i] for i in (2, 4, 6, 8, 10)})


def test_a_resume_of_a_run_that_has_stopped_only_evaluates_it(tmp_path):
    run(tmp_path)
    before = files(tmp_path)
    assert run(tmp_path, resumed_run).iter == 10
    assert files(tmp_path) == before
    patient = [hook(min_delta=0.01, patience=4), 'ReportHook']
    assert run(tmp_path, resumed_run, hooks=patient).iter == 12
    assert json.loads((tmp_path / 'run.json').read_text()).keys().isdisjoint({'stopped_early'})


def test_epochs_and_lower_is_better(tmp_path):
    """Two epochs of five: the second is worse than the first."""
    hooks = [hook(patience=1, rule='less')]
    scores = {'model.scores': [0.0] * 5 + [0.2] + [0.3] * 10}
    runner = evaluated_run(tmp_path, *hooks, by_epoch=True, **scores, **{'train_cfg.max_epochs': 4})
    runner.train()
    assert (runner.epoch, runner.iter) == (2, 10)


@pytest.mark.parametrize(('rule', 'scores'), [('greater', [0, 0, 0]), ('less', [0.2, 0.2, 0.2])])
def test_a_score_that_is_as_good_as_the_best_is_no_improvement(rule, scores):
    hook = ResumableEarlyStoppingHook('mIoU', patience=2, rule=rule)
    stops = [hook._why_to_stop(dict(enumerate(scores[: i + 1]))) is not None for i in range(3)]
    assert stops == [False, False, True]


@pytest.mark.parametrize(
    ('monitor', 'rule'),
    [
        ('coco/bbox_AP_glossy ibis', 'greater'),  # which contains "loss"
        ('coco_panoptic/PQ', 'greater'),
        ('height/MAE', 'less'),
        ('accuracy/top1', 'greater'),
    ],
)
def test_the_rule_follows_from_the_name_of_the_metric(monitor, rule):
    assert ResumableEarlyStoppingHook(monitor).rule == rule


def test_a_metric_of_another_name_is_refused(tmp_path):
    with pytest.raises(UserError, match=r'a validation has no metric mIou; did you mean mIoU\?'):
        run(tmp_path, hooks=[hook(monitor='mIou', rule='greater')])
    with pytest.raises(UserError, match='no metric coco/bbox_mAP: name one of mIoU, mAcc'):
        run(tmp_path, hooks=[hook(monitor='coco/bbox_mAP')])


def test_the_hook_of_mmengine_becomes_ours():
    cfg = Config(dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='mIoU', patience=2)]))
    notes = adapt(cfg)
    assert cfg.custom_hooks[0].type == 'ResumableEarlyStoppingHook'
    assert any('ResumableEarlyStoppingHook for EarlyStoppingHook' in note for note in notes)
