"""Runs that are stopped and resumed, with accumulated gradients and averaged weights as well."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import wait_until
from helpers.heads import narrow
from helpers.processes import in_processes, start_forks
from helpers.resumed_runs import DRAWS, assert_same_run, hooks, interrupted, names, resumed
from helpers.runs import steps
from helpers.toy import ToyDataset, toy_runner
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.base.errors import Interrupted
from xcit_mm.base.run_files import require_checkpoints
from xcit_mm.config.build_model import without_other_heads
from xcit_mm.train.checkpoints.newest import newest_checkpoint
from xcit_mm.train.hooks import interrupt

WARM_UP = {'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)]}
ACCUMULATED = WARM_UP | {
    'optim_wrapper.accumulative_counts': 3,
    'optim_wrapper.clip_grad': dict(max_norm=0.5),
}
EMA = {'default_hooks.ema': dict(type='EMAHook', momentum=0.1)}


@pytest.mark.parametrize('by_epoch', [False, True], ids=['iterations', 'epochs'])
@pytest.mark.parametrize(
    ('options', 'interval', 'stops'),
    [
        (WARM_UP, 2, (5, 7)),  # at the end of an epoch of five, and in the middle
        (ACCUMULATED | EMA, 1, (4, 7)),  # between two updates
    ],
    ids=['each step', 'accumulated'],
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path, options, stops, interval, by_epoch):
    """Eight iterations, or two epochs of five: neither is a multiple of three."""
    last = 10 if by_epoch else 8
    options = options | {'by_epoch': by_epoch, 'default_hooks.checkpoint.interval': interval}
    DRAWS.clear()
    toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **options).train()
    expected = DRAWS.copy()
    # A checkpoint that is due while gradients are held is written after their update.
    if 'optim_wrapper.accumulative_counts' in options:
        updates = [3, 5, 8, 10] if by_epoch else [3, 6, 8]
    else:
        updates = range(interval, last + 1, interval)
    assert names(tmp_path / 'whole') == sorted(f'iter_{step}.pth' for step in updates)
    for after in stops:
        DRAWS.clear()
        cut = tmp_path / f'cut_{after}'
        interrupted(cut, after, **options)
        resumed(cut, **options)
        assert sorted(set(DRAWS)) == expected
        assert_same_run(tmp_path / 'whole', cut, last)


def test_a_dino_is_fine_tuned_for_other_classes():
    """Its queries with noise embed the classes."""
    environment.require_framework('mmdet')
    states = []
    for num_classes in (80, 3):
        model = narrow('dino_xcit_s12_16_12e')
        model['bbox_head']['num_classes'] = num_classes
        with DefaultScope.overwrite_default_scope('mmdet'):
            states.append(MODELS.build(model).state_dict())
    kept, initial = without_other_heads(*states)
    assert kept.keys() | initial == states[1].keys()
    assert 'dn_query_generator.label_embedding.weight' in initial
    assert {name.split('.')[0] for name in initial} == {'bbox_head', 'dn_query_generator'}


@DATASETS.register_module()
class StuckDataset(ToyDataset):
    """Loads six samples, then sends a signal to the training that waits for the next."""

    def __init__(self, folder: str, number: int) -> None:
        super().__init__()
        self.folder, self.number = Path(folder), number
        self.num_loaded = 0

    def __getitem__(self, index: int) -> dict:
        if self.num_loaded == 6:
            wait_until(lambda: len(steps(self.folder)) == 3)
            time.sleep(0.5)  # most likely until the end of the step; otherwise it stops there
            os.kill(os.getppid(), self.number)
            (self.folder / 'stuck').touch()
            time.sleep(10**6)
        self.num_loaded += 1
        return super().__getitem__(index)


def stuck_runner(folder: Path, number: int, **kwargs):
    kwargs['train_dataloader.dataset'] = dict(
        type='StuckDataset', folder=str(folder), number=number
    )
    return toy_runner(folder, custom_hooks=hooks(dict(type='InterruptHook')), **kwargs)


def test_a_run_that_waits_for_data_stops_at_a_signal_and_loses_nothing(tmp_path):
    number, kwargs = signal.SIGINT, {'by_epoch': True, 'default_hooks.checkpoint.interval': 100}
    toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs).train()
    cut = tmp_path / 'cut'
    runner = stuck_runner(cut, number, **kwargs, **{'train_dataloader.num_workers': 1})
    with pytest.raises(Interrupted, match='after iteration 3') as stopped:
        runner.train()
    assert stopped.value.signum == number  # which is in the exit code of the tool
    assert names(cut) == ['iter_3.pth']
    resumed(cut, **kwargs)
    assert_same_run(tmp_path / 'whole', cut, 10)


def test_a_second_signal_ends_a_run_at_once(tmp_path):
    """The main process itself is stuck, so that no step ends."""
    output = tmp_path / 'output'
    output.touch()

    def run(rank: int) -> None:
        sys.stderr = output.open('w')
        stuck_runner(tmp_path, 0).train()

    (child,) = start_forks(1, run)
    wait_until((tmp_path / 'stuck').exists)
    os.kill(child, signal.SIGTERM)
    wait_until(lambda: interrupt.STOPPING in output.read_bytes())
    time.sleep(1.1)  # within a second it would count as the same request
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_with_another_number_of_steps_an_epoch_the_interrupted_epoch_starts_again(tmp_path):
    """Five iterations an epoch before, two after: the run was in the second epoch."""
    interrupted(tmp_path, 7, by_epoch=True)
    DRAWS.clear()
    runner = resumed(tmp_path, by_epoch=True, **{'train_dataloader.batch_size': 5})
    assert [step for step, *_ in DRAWS] == [2, 3]
    assert runner.iter == 4
    logs = ''.join(path.read_text() for path in tmp_path.glob('*/*.log'))
    assert "There are {'images a step': 5, 'steps an epoch': 2}, before the" in logs
    assert steps(tmp_path) == sorted(set(steps(tmp_path)))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_nan(path: Path) -> None:
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['state_dict']['linear.weight'][:] = torch.nan
    torch.save(checkpoint, path)


def test_bad_checkpoints_are_named_and_an_older_one_is_resumed(tmp_path):
    interrupted(tmp_path, 4)
    cut_off(tmp_path / 'iter_4.pth')
    fill_with_nan(tmp_path / 'iter_3.pth')
    path, (cut, with_nan) = newest_checkpoint(str(tmp_path))
    assert path.name == 'iter_2.pth'
    assert 'iter_4.pth cannot be read: it is cut off' in cut
    assert 'infinite numbers or NaN in linear.weight' in with_nan
    assert cut.endswith('; iter_2.pth is used instead')
    resumed(tmp_path)
    for path in tmp_path.glob('iter_*.pth'):
        path.write_bytes(b'')
    with pytest.raises(UserError, match=r'no checkpoint in .* can be resumed: .*iter_2.*iter_1'):
        newest_checkpoint(str(tmp_path))
    with pytest.raises(UserError, match='holds no checkpoint to resume from'):
        require_checkpoints(str(tmp_path / 'other'))


def test_a_copy_is_resumed_from_its_own_newest_checkpoint(tmp_path):
    """Whatever the times of its files are, and although mmengine notes the original's path."""
    interrupted(tmp_path / 'a', 4)
    (tmp_path / 'b').mkdir()
    for name in ('iter_3.pth', 'iter_2.pth', 'last_checkpoint'):
        (tmp_path / 'b' / name).write_bytes((tmp_path / 'a' / name).read_bytes())
    (tmp_path / 'b/iter_9.pth').mkdir()
    path, notes = newest_checkpoint(str(tmp_path / 'b'))
    assert path == tmp_path / 'b/iter_3.pth'
    assert notes == []


def test_a_torn_line_is_written_again_and_the_config_in_a_checkpoint_is_not_run(tmp_path):
    """mmengine reads ``meta.config`` as a Python file."""
    interrupted(tmp_path, 2)
    with (tmp_path / 'losses.jsonl').open('a') as file:
        file.write('{"iter": 3, "lo')
    checkpoint = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    checkpoint['meta']['config'] = f'import os\nos.mkdir({str(tmp_path / "trace")!r})'
    torch.save(checkpoint, tmp_path / 'iter_2.pth')
    resumed(tmp_path)
    lines = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert lines == list(range(1, 9))
    assert not (tmp_path / 'trace').exists()


@pytest.mark.parametrize(
    ('by_epoch', 'expected'), [(False, [3] * 6 + [2] * 2), (True, ([3] * 3 + [2] * 2) * 2)]
)
def test_an_update_is_the_mean_of_its_iterations(tmp_path, monkeypatch, by_epoch, expected):
    """Also of those that are left at the end of the run or of an epoch."""
    divisors = []
    scale_loss = OptimWrapper.scale_loss

    def recorded(wrapper: OptimWrapper, loss: torch.Tensor) -> torch.Tensor:
        scaled = scale_loss(wrapper, loss)
        divisors.append(round((loss / scaled).item()))
        return scaled

    monkeypatch.setattr(OptimWrapper, 'scale_loss', recorded)
    toy_runner(tmp_path, by_epoch=by_epoch, **ACCUMULATED).train()
    assert divisors == expected


def test_the_learning_rate_is_scaled_with_the_images_of_an_update(tmp_path):
    options = {'auto_scale_lr': dict(enable=True, base_batch_size=24)}
    runner = toy_runner(tmp_path, **options, **{'optim_wrapper.accumulative_counts': 3})
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.scale_lr(runner.optim_wrapper, runner.auto_scale_lr)
    assert runner.optim_wrapper.get_lr()['lr'] == [pytest.approx(0.1 * 2 * 3 / 24)]


def test_a_run_with_averaged_weights_is_not_resumed_without_them(tmp_path):
    interrupted(tmp_path, 4, **ACCUMULATED, **EMA)
    with pytest.raises(UserError, match=r'iter_3\.pth belongs to a run that averages its weights'):
        resumed(tmp_path, **ACCUMULATED)


def test_two_processes_resume_between_two_updates(tmp_path):
    def run(rank: int) -> None:
        wrapper = dict(type='MMDistributedDataParallel', device_ids=None)
        options = ACCUMULATED | EMA | dict(launcher='pytorch', model_wrapper_cfg=wrapper)
        options |= {'train_dataloader.drop_last': True}  # BatchNorm needs two
        runner = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **options)
        runner.train()
        weights = [torch.zeros(1, 2) for _ in (0, 1)]
        torch.distributed.all_gather(weights, runner.model.module.linear.weight.data)
        assert torch.equal(*weights)
        interrupted(tmp_path / 'cut', 5, **options)
        torch.distributed.barrier()
        resumed(tmp_path / 'cut', **options)

    in_processes(2, run, tmp_path)
    for name in ('whole', 'cut'):
        assert names(tmp_path / name) == ['iter_3.pth', 'iter_6.pth', 'iter_8.pth']
    assert_same_run(tmp_path / 'whole', tmp_path / 'cut', 8)
