"""Trainings on whole images, tile by tile: compared, resumed, killed, shared and refused."""

import json
import math
import os
import re
import signal
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import relative_error
from helpers.processes import forked, in_child, in_processes, torchruns
from helpers.resumed_runs import assert_same_run
from helpers.runs import steps
from helpers.scenes import DETECTOR, scene_config, train_scenes
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image
from torch import nn

from xcit_mm import UserError
from xcit_mm.base.run_files import has_checkpoints
from xcit_mm.large.tokens.token_files import TokenFile
from xcit_mm.train import test as run_test
from xcit_mm.train import train
from xcit_mm.train.distributed import average_gradients

STEPS = 4
DELETED = dict(_delete_=True)
PICTURES = dict(pictures=dict(type='PictureHook', **DELETED))
QUICK = dict(
    augmented=True,
    train_cfg=dict(max_iters=STEPS, val_interval=100),
    val_cfg=None,
    val_dataloader=None,
    val_evaluator=None,
)
EVERYTHING = dict(
    optim_wrapper=dict(
        type='OptimWrapper',
        accumulative_counts=2,
        constructor='LayerDecayConstructor',
        paramwise_cfg=dict(layer_decay=0.8),
    ),
    model=dict(backbone=dict(drop_path_rate=0.3)),
    default_hooks=dict(ema=dict(type='EMAHook', momentum=0.3), **PICTURES),
)


@HOOKS.register_module()
class SpoilHook(Hook):
    """Do what happens to a run, before the step of an iteration."""

    priority = 'VERY_HIGH'

    def __init__(self, what: str, rank: int = 0) -> None:
        self.what, self.rank = what, rank

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if (runner.iter + 1, get_rank()) != (2, self.rank):
            return
        sample = data_batch['data_samples'][0]
        if self.what == 'change':
            os.utime(sample.img_path, (0, 0))
        if self.what == 'wrong label':
            runner.model.module.decode_head.num_classes = 2
        if self.what == 'NaN':  # of one process
            runner.model.module.backbone.blocks[1].mlp.fc1.weight.data.fill_(torch.nan)


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


def spoiled(tmp_path: Path, what: str) -> dict:
    return quick(tmp_path / 'store', custom_hooks=[dict(type='SpoilHook', what=what)])


@pytest.mark.parametrize(
    ('what', 'message'),
    [
        ('change', r'\.jpg has changed while it was read: run the command again'),
        ('wrong label', r'\.png: the label 3 is outside 1\.\.2, the 2 classes'),
    ],
)
def test_a_step_that_is_refused_changes_nothing(root, tmp_path, what, message):
    with pytest.raises(UserError, match=message):
        train_scenes(tmp_path / 'run', root, **spoiled(tmp_path, what))
    assert steps(tmp_path / 'run') == [1]
    assert not (tmp_path / 'store').exists()


# The numbers of the writes to the store, since each start, at which a run is killed. A step has 13.
KILLS = 20, 3, 12


def test_kills_in_the_middle_of_steps_end_in_the_same_bits(uninterrupted, shapes_root, tmp_path):
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

    for last in KILLS:
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

    hook = dict(type='SpoilHook', what='NaN', rank=1)
    configs['spoiled'] = scene_config(folder, **QUICK | dict(custom_hooks=[hook]))

    def run(rank: int) -> None:
        for number, (name, config) in enumerate(configs.items()):
            os.environ.update(envs[number], RANK=str(rank))
            options = dict(data_root=str(shapes_root))
            try:
                train(str(config), str(folder / name), launcher='pytorch', options=options)
            except UserError as error:
                (folder / f'error_{rank}.txt').write_text(f'{name}: {error}')
            torch.distributed.destroy_process_group()

    with torchruns(len(configs), 2) as envs:
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


def test_an_error_of_one_process_ends_all_before_the_step(shared_runs):
    first, second = ((shared_runs / f'error_{rank}.txt').read_text() for rank in (0, 1))
    assert first == second
    assert re.match(r'spoiled: process 2 on .*\.jpg: layer 2 of the backbone', first)
    assert steps(shared_runs / 'spoiled') == [1]


@pytest.mark.parametrize(('name', 'counts', 'last'), [('shared', 1, STEPS), ('own', 2, STEPS // 2)])
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


def test_a_run_that_cannot_be_streamed_ends_before_its_first_step(shapes_root, tmp_path):
    message = r'\d+\.jpg: the stores need .* but the limit is .*: name a folder for the stores with'
    stream = dict(memory='1KiB', store=None)
    with pytest.raises(UserError, match=message):
        train_scenes(tmp_path / 'run', shapes_root, **QUICK | dict(stream=stream))
    assert steps(tmp_path / 'run') == []


def test_a_detector_trains_and_is_tested(shapes_root, tmp_path):
    """In bfloat16, where the CPU has it, with masks in windows, pictures and the report."""
    hooks = dict(report=dict(type='ReportHook', **DELETED), **PICTURES)
    values = dict(
        default_hooks=hooks,
        augmented=True,
        train_cfg=dict(max_iters=2, val_interval=2),
        optim_wrapper=dict(type='AmpOptimWrapper'),
    )
    work_dir = train_scenes(tmp_path / 'run', shapes_root, DETECTOR, **values)
    line = logged(work_dir)[-1]
    assert all(math.isfinite(line[name]) for name in ('loss', 'loss_mask', 'loss_rpn_cls'))
    validated = logged(work_dir, 'metrics.jsonl')[-1]
    assert (work_dir / 'report.html').is_file()
    config = scene_config(tmp_path, DETECTOR, augmented=True, default_hooks=hooks)
    metrics = run_test(
        str(config),
        str(work_dir / 'iter_2.pth'),
        str(tmp_path / 'test'),
        show_dir=str(tmp_path / 'shown'),
        options=dict(data_root=str(shapes_root)),
    )
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} <= metrics.keys()
    assert metrics == pytest.approx({name: validated[name] for name in metrics}, abs=1e-3)
    for folder in (work_dir / 'pictures', tmp_path / 'shown'):
        pictures = [np.asarray(Image.open(path)) for path in sorted(folder.iterdir())]
        assert len(pictures) == 4
        assert all(picture.shape[1] == 640 for picture in pictures)  # two of 160, enlarged
        truth, prediction = pictures[0][:, :320], pictures[0][:, 320:]
        assert (truth[:100] != prediction[:100]).any()


def test_gradients_are_averaged_over_the_processes_that_have_them(tmp_path):
    def run(rank: int) -> None:
        both, first, none, fixed = (nn.Parameter(torch.zeros(2)) for _ in range(4))
        both.grad = torch.tensor([1.0, 4.0]) * (rank + 1)
        if rank == 0:
            first.grad = torch.ones(2)
        fixed.requires_grad_(False)
        average_gradients([both, first, none, fixed])
        assert both.grad.tolist() == [1.5, 6.0]
        assert first.grad.tolist() == [0.5, 0.5]
        assert none.grad is fixed.grad is None

    in_processes(2, run, tmp_path)


def test_bfloat16_trains_nearly_as_float32(uninterrupted, shapes_root, tmp_path):
    values = quick(tmp_path / 'store', optim_wrapper=dict(type='AmpOptimWrapper'))
    narrow = train_scenes(tmp_path / 'run', shapes_root, **values)
    for line, expected in zip(logged(narrow), logged(uninterrupted), strict=True):
        assert line['loss'] == pytest.approx(expected['loss'], rel=1e-2)
