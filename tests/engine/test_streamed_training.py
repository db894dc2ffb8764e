"""Trainings on whole images, tile by tile: compared, resumed, killed, shared and refused."""

import json
import os
import resource
import signal
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import relative_error
from helpers.processes import forked, in_child, torchrun
from helpers.resumed_runs import assert_same_run
from helpers.runs import steps
from helpers.scenes import DETECTOR, SEGMENTOR, STREAM, scene_config, train_scenes
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from xcit_mm import UserError
from xcit_mm.engine import test as run_test
from xcit_mm.engine import train
from xcit_mm.large_images.token_files import TokenFile
from xcit_mm.run_files import has_checkpoints

STEPS = 4
QUICK = dict(
    augmented=True,
    train_cfg=dict(max_iters=STEPS, val_interval=100),
    val_cfg=None,
    val_dataloader=None,
    val_evaluator=None,
    default_hooks=dict(report=None),
)
EVERYTHING = dict(
    optim_wrapper=dict(
        type='OptimWrapper',
        accumulative_counts=2,
        constructor='LayerDecayConstructor',
        paramwise_cfg=dict(layer_decay=0.8),
    ),
    model=dict(backbone=dict(drop_path_rate=0.3)),
    default_hooks=dict(ema=dict(type='EMAHook', momentum=0.3)),
)


@HOOKS.register_module()
class SpoilHook(Hook):
    """Do what happens to a run, before the step of an iteration."""

    def __init__(self, what: str, at: int = 2) -> None:
        self.what, self.at = what, at

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 != self.at:
            return
        if self.what == 'error':
            raise RuntimeError('planted')
        if self.what == 'change':
            os.utime(data_batch['data_samples'][0].img_path, (0, 0))
        if self.what == 'NaN':
            runner.model.module.backbone.blocks[1].mlp.fc1.weight.data.fill_(torch.nan)
        if self.what == 'full disk':
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


def logged(work_dir: Path, file: str = 'losses.jsonl') -> list[dict]:
    return [json.loads(line) for line in (work_dir / file).read_text().splitlines()]


def state(work_dir: Path, number: int = STEPS) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, averaged and not."""
    checkpoint = torch.load(work_dir / f'iter_{number}.pth', weights_only=False)
    averaged = checkpoint.get('ema_state_dict', {})
    return checkpoint['state_dict'] | {f'ema.{k}': v for k, v in averaged.items()}


def assert_same_weights(first: dict, second: dict, tolerance: float = 1e-4) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        if value.is_floating_point() and second[name].norm() > 0:
            assert relative_error(value, second[name]) <= tolerance, name


def test_losses_weights_and_metrics_are_those_of_the_whole_image(shapes_root, tmp_path):
    streamed = train_scenes(tmp_path / 'streamed', shapes_root, **EVERYTHING)
    norm_eval = [dict(type='NormEvalHook')]
    whole = train_scenes(
        tmp_path / 'whole', shapes_root, stream=None, custom_hooks=norm_eval, **EVERYTHING
    )
    assert steps(streamed) == [*range(1, STEPS + 1)]
    for line, expected in zip(logged(streamed), logged(whole), strict=True):
        assert line == pytest.approx(expected, rel=1e-4)
    assert_same_weights(state(streamed), state(whole))
    key = 'neck.fpn_convs.0.conv.weight'
    assert relative_error(state(streamed, 2)[key], state(streamed)[key]) > 1e-3
    metrics, expected = (logged(run, 'metrics.jsonl')[-1] for run in (streamed, whole))
    assert metrics == pytest.approx(expected, abs=0.02)
    assert len(list((streamed / 'pictures').iterdir())) == 4


@pytest.fixture(scope='module')
def uninterrupted(shapes_root, tmp_path_factory) -> Path:
    """A run with random numbers in data and model, whose tokens are stored in files."""
    folder = tmp_path_factory.mktemp('uninterrupted')
    return train_scenes(folder / 'run', shapes_root, **quick(folder / 'store'))


def quick(store: Path, **values) -> dict:
    model = dict(backbone=dict(drop_path_rate=0.3))
    stream = dict(memory='1KiB', store=str(store), shared=False)
    return QUICK | dict(stream=stream, model=model) | values


@pytest.mark.parametrize(
    ('what', 'error', 'message'),
    [
        ('error', RuntimeError, 'planted'),
        ('change', UserError, r'\.jpg has changed while a training step read it: resume the run'),
        ('NaN', UserError, r'\.jpg: layer 2 of the backbone computes values that are not finite'),
    ],
)
def test_a_run_that_ends_in_a_step_repeats_it(
    uninterrupted, root, tmp_path, what, error, message
):
    spoiled = quick(tmp_path / 'store', custom_hooks=[dict(type='SpoilHook', what=what)])
    with pytest.raises(error, match=message):
        train_scenes(tmp_path / 'run', root, **spoiled)
    assert steps(tmp_path / 'run') == [1]
    train_scenes(tmp_path / 'run', root, resume=True, **quick(tmp_path / 'store'))
    assert_same_run(uninterrupted, tmp_path / 'run', STEPS)
    assert not (tmp_path / 'store').exists()


def test_a_disk_that_becomes_full_in_a_step_loses_nothing(uninterrupted, shapes_root, tmp_path):
    full = dict(custom_hooks=[dict(type='SpoilHook', what='full disk')])

    def run() -> None:
        with pytest.raises(OSError, match='File too large'):
            train_scenes(tmp_path / 'run', shapes_root, **quick(tmp_path / 'store', **full))

    assert in_child(run) == 0
    assert steps(tmp_path / 'run') == [1]
    train_scenes(tmp_path / 'run', shapes_root, resume=True, **quick(tmp_path / 'store'))
    assert_same_run(uninterrupted, tmp_path / 'run', STEPS)


# The numbers of the writes to the store, since each start, at which a run is killed. A step has 14.
KILLS = (20, 3, 12, 1, 23, 9, 14, 27, 6, 13)


@pytest.mark.parametrize('kills', [KILLS[:2], pytest.param(KILLS, marks=pytest.mark.slow)], ids=len)
def test_kills_in_the_middle_of_steps_end_in_the_same_bits(
    uninterrupted, shapes_root, tmp_path, kills
):
    work_dir = tmp_path / 'run'

    def run(last: int) -> None:
        writes = count(1)

        def mortal(write):
            def write_or_die(*args) -> None:
                if next(writes) == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                write(*args)

            return write_or_die

        TokenFile.write, TokenFile.add = map(mortal, (TokenFile.write, TokenFile.add))
        resume = has_checkpoints(str(work_dir))
        train_scenes(work_dir, shapes_root, resume=resume, **quick(tmp_path / 'store'))
        assert not last, next(writes)

    for last in kills:
        assert os.WTERMSIG(in_child(partial(run, last))) == signal.SIGKILL
        assert list((tmp_path / 'store').rglob('*.bin'))
    assert in_child(partial(run, 0)) == 0
    assert_same_run(uninterrupted, work_dir, STEPS)
    assert not (tmp_path / 'store').exists()


@pytest.fixture(scope='module')
def shared_runs(shapes_root, tmp_path_factory) -> Path:
    """The work dirs of two processes that share each image, and that have an image each."""
    folder, configs = tmp_path_factory.mktemp('processes'), {}
    for name, last in (('shared', STEPS), ('own', STEPS // 2)):
        stream = dict(memory='1KiB', store=str(folder / 'store'), shared=name == 'shared')
        values = dict(train_cfg=dict(max_iters=last, val_interval=STEPS))
        values['custom_hooks'] = [dict(type='KeepHook', folder=str(folder / name))]
        configs[name] = scene_config(folder, stream=stream, **values)

    def run(rank: int) -> None:
        for number, (name, config) in enumerate(configs.items()):
            os.environ.update(env, RANK=str(rank), TORCHELASTIC_RESTART_COUNT=str(number))
            options = dict(data_root=str(shapes_root))
            train(str(config), str(folder / name), launcher='pytorch', options=options)
            torch.distributed.destroy_process_group()

    with torchrun(2) as env:
        forked(2, run)
    assert not list((folder / 'store').rglob('*.*'))
    return folder


@HOOKS.register_module()
class KeepHook(Hook):
    """Keep the weights of each process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_train(self, runner) -> None:
        torch.save(runner.model.module.state_dict(), f'{self.folder}/rank_{get_rank()}.pth')


@pytest.mark.parametrize(
    ('name', 'counts', 'last'), [('shared', 1, STEPS), ('own', 2, STEPS // 2)]
)
def test_two_processes_train_and_measure_what_one_does(
    shared_runs, shapes_root, tmp_path, name, counts, last
):
    optim_wrapper = dict(type='OptimWrapper', accumulative_counts=counts)
    alone = train_scenes(tmp_path / 'alone', shapes_root, optim_wrapper=optim_wrapper)
    processes = shared_runs / name
    first, second = (torch.load(processes / f'rank_{rank}.pth') for rank in (0, 1))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert_same_weights(state(processes, last), state(alone))
    assert_same_weights(first, state(alone))
    pair = logged(processes, 'metrics.jsonl')[-1], logged(alone, 'metrics.jsonl')[-1]
    metrics, expected = ({k: v for k, v in line.items() if k != 'iter'} for line in pair)
    assert metrics == pytest.approx(expected, abs=0.02)
    rates = [logged(run)[-1]['lr'] for run in (processes, alone)]
    assert rates[0] == rates[1]
    if name == 'shared':
        for line, expected in zip(logged(processes), logged(alone), strict=True):
            assert line == pytest.approx(expected, rel=1e-4)
