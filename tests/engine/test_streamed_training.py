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
from helpers.processes import forked, in_child, start_child, torchrun
from helpers.resumed_runs import assert_same_run
from helpers.runs import steps
from helpers.scenes import DETECTOR, SEGMENTOR, STREAM, scene_config, train_scenes
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from xcit_mm import UserError
from xcit_mm.engine import test as run_test
from xcit_mm.large_images.token_files import TokenFile
from xcit_mm.run_files import has_checkpoints

STEPS = 4
PLAIN = dict(custom_hooks=[dict(type='NormEvalHook')])
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


@pytest.mark.parametrize('options', [{}, EVERYTHING], ids=['plain', 'everything'])
def test_losses_weights_and_metrics_are_those_of_the_whole_image(shapes_root, tmp_path, options):
    streamed = train_scenes(tmp_path / 'streamed', shapes_root, **options)
    whole = train_scenes(tmp_path / 'whole', shapes_root, stream=None, **PLAIN, **options)
    assert steps(streamed) == [*range(1, STEPS + 1)]
    for line, expected in zip(logged(streamed), logged(whole), strict=True):
        assert line == pytest.approx(expected, rel=1e-4)
    assert_same_weights(state(streamed), state(whole))
    assert relative_error(*(state(streamed, n)['neck.fpn_convs.0.conv.weight'] for n in (2, 4))) > (
        1e-3
    )
    metrics, expected = (logged(run, 'metrics.jsonl')[-1] for run in (streamed, whole))
    assert metrics == pytest.approx(expected, abs=0.02)
    assert len(list((streamed / 'pictures').iterdir())) == 4
