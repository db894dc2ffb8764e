"""Toy runs that are stopped and resumed, and the hooks that watch them."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS

from helpers.runs import steps
from helpers.toy import toy_runner
from xcit_mm.train.checkpoints.newest import newest_checkpoint

DRAWS: list[tuple[int, float, float, float]] = []


@HOOKS.register_module()
class DrawHook(Hook):
    """Draw from every generator in each step."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        numbers = random.random(), float(np.random.rand()), float(torch.rand(1))
        DRAWS.append((runner.iter, *numbers))


@HOOKS.register_module()
class StopHook(Hook):
    """End a run after an iteration, as if by an error."""

    priority = 'LOWEST'

    def __init__(self, after: int) -> None:
        self.after = after

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == self.after:
            raise RuntimeError('planted')


@HOOKS.register_module()
class ScoreHook(Hook):
    """Show the checkpoint hook better metrics after each iteration."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        metrics = {'acc': runner.iter, 'miou': runner.iter}
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and runner.iter:
                hook.after_val_epoch(runner, metrics)


def hooks(*more: dict) -> list[dict]:
    names = 'NonFiniteHook', 'LossLogHook', 'BadDataHook', 'DrawHook'
    return [*(dict(type=name) for name in names), *more]


def interrupted(work_dir, after: int, **kwargs) -> None:
    runner = toy_runner(work_dir, custom_hooks=hooks(dict(type='StopHook', after=after)), **kwargs)
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()


def resumed(work_dir, **kwargs):
    path, _ = newest_checkpoint(str(work_dir))
    runner = toy_runner(work_dir, resume=True, load_from=str(path), custom_hooks=hooks(), **kwargs)
    runner.train()
    return runner


def names(folder) -> list[str]:
    """The checkpoints in a folder, without the links to them."""
    return sorted(path.name for path in folder.glob('*.pth') if not path.is_symlink())


def _contents(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, averaged and not, and what the optimizer holds."""
    checkpoint = torch.load(path, weights_only=False)
    optimizer = checkpoint['optimizer']['state']
    state = {f'{i}.{k}': v for i, entries in optimizer.items() for k, v in entries.items()}
    averaged = checkpoint.get('ema_state_dict', {})
    return checkpoint['state_dict'] | {f'ema.{k}': v for k, v in averaged.items()} | state


def assert_same_run(first: Path, second: Path, last: int) -> None:
    """Both have logged each step once, with equal losses, and have equal last checkpoints."""
    assert steps(first) == [*range(1, last + 1)]
    logs = [(folder / 'losses.jsonl').read_text() for folder in (first, second)]
    assert logs[0] == logs[1]
    expected, actual = (_contents(folder / f'iter_{last}.pth') for folder in (first, second))
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name
