"""What a resumed run takes from its checkpoint, and what it does where the checkpoint is bad."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import wait_until
from helpers.resumed_runs import DRAWS, hooks, interrupted, resumed
from helpers.runs import steps
from helpers.toy import ToyDataset, toy_runner
from mmengine.registry import DATASETS

from xcit_mm import UserError
from xcit_mm.engine.data.seeding import seed_all
from xcit_mm.engine.hooks.interrupt import ONE_REQUEST
from xcit_mm.engine.loops import ResumableIterLoop
from xcit_mm.engine.resume import has_checkpoints, newest_checkpoint, set_run_aside
from xcit_mm.errors import Interrupted


@pytest.mark.parametrize('kwargs', [dict(), dict(by_epoch=True)], ids=['iterations', 'epochs'])
@pytest.mark.parametrize('interval', [1, 2])
@pytest.mark.parametrize('after', [1, 3, 5, 7])
def test_a_resumed_run_ends_like_one_left_alone(tmp_path, kwargs, interval, after):
    """In the midst of an epoch of five iterations, at its end, before the first checkpoint."""
    kwargs = kwargs | {
        'default_hooks.checkpoint.interval': interval,
        'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)],
    }
    DRAWS.clear()
    whole = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs)
    whole.train()
    expected = DRAWS.copy()
    DRAWS.clear()
    interrupted(tmp_path / 'cut', after, **kwargs)
    if after < interval:
        assert not has_checkpoints(str(tmp_path / 'cut'))
        return
    rest = resumed(tmp_path / 'cut', **kwargs)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name
    assert sorted(set(DRAWS)) == expected
    logs = [(tmp_path / name / 'losses.jsonl').read_text() for name in ('whole', 'cut')]
    assert logs[0] == logs[1]
    steps = [json.loads(line)['iter'] for line in logs[0].splitlines()]
    assert steps == list(range(1, len(expected) + 1))


@DATASETS.register_module()
class StuckDataset(ToyDataset):
    """It gives no sample after six, and sends a signal to the training that waits for the next."""

    def __init__(self, folder: str, number: int) -> None:
        super().__init__()
        self.folder, self.number = Path(folder), number
        self.given = 0

    def __getitem__(self, index: int) -> dict:
        if self.given == 6:
            wait_until(lambda: len(steps(self.folder)) == 3)
            time.sleep(0.5)  # the end of the step, most likely; else it stops there
            os.kill(os.getppid(), self.number)
            (self.folder / 'stuck').touch()
            time.sleep(10**6)
        self.given += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ('kwargs', 'number'),
    [(dict(), signal.SIGTERM), (dict(by_epoch=True), signal.SIGINT)],
    ids=['SIGTERM', 'Ctrl-C in an epoch'],
)
def test_a_run_that_waits_for_data_is_asked_to_stop_and_loses_nothing(tmp_path, kwargs, number):
    kwargs = kwargs | {'default_hooks.checkpoint.interval': 100}
    whole = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs)
    whole.train()
    cut = tmp_path / 'cut'
    stuck = dict(type='StuckDataset', folder=str(cut), number=number)
    stuck = {'train_dataloader.dataset': stuck, 'train_dataloader.num_workers': 1}
    runner = toy_runner(cut, custom_hooks=hooks(dict(type='InterruptHook')), **kwargs, **stuck)
    with pytest.raises(Interrupted, match='after iteration 3'):
        runner.train()
    assert [path.name for path in cut.glob('*.pth')] == ['iter_3.pth']
    rest = resumed(cut, **kwargs)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_a_second_signal_ends_a_run_at_once(tmp_path):
    """Where the main process itself is stuck, so that no step ends."""
    output = tmp_path / 'output'
    output.touch()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # a fork would wait for those of OpenMP, which it lacks
            sys.stderr = output.open('w')
            stuck = dict(type='StuckDataset', folder=str(tmp_path), number=0)
            options = {'train_dataloader.dataset': stuck}
            toy_runner(tmp_path, custom_hooks=hooks(dict(type='InterruptHook')), **options).train()
        finally:
            os._exit(1)
    wait_until((tmp_path / 'stuck').exists)
    os.kill(child, signal.SIGTERM)
    wait_until(lambda: b'asked to stop' in output.read_bytes())
    time.sleep(ONE_REQUEST + 0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_generators_follow_from_the_place_alone():
    def draw() -> tuple:
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed_all(1, 2, 3)
    first = draw()
    draw()
    seed_all(1, 2, 3)
    assert draw() == first
    for other in ((1, 2), (1, 3, 2), (1, 2, 4)):
        seed_all(*other)
        assert not set(draw()) & set(first)


def test_where_a_step_takes_other_images_an_epoch_is_begun_anew(tmp_path):
    interrupted(tmp_path, 7, by_epoch=True)
    runner = resumed(tmp_path, by_epoch=True, **{'train_dataloader.batch_size': 5})
    assert runner.iter == 4  # epochs of two iterations now
    logs = ''.join(path.read_text() for path in tmp_path.glob('*/*.log'))
    assert "There are {'images a step': 5, 'steps an epoch': 2}, before the interruption" in logs
    steps = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert steps == sorted(set(steps))


def test_where_the_data_was_changed_the_epochs_that_are_left_are_trained(tmp_path):
    """Five iterations an epoch before, two after: the run was in the second epoch."""
    interrupted(tmp_path, 7, by_epoch=True)
    DRAWS.clear()
    smaller = {'train_dataloader.num_batch_per_epoch': 2}
    runner = resumed(tmp_path, by_epoch=True, **smaller)
    assert [step for step, *_ in DRAWS] == [2, 3]
    assert runner.iter == 4


def test_a_checkpoint_with_weights_that_are_no_numbers_is_not_resumed(tmp_path):
    interrupted(tmp_path, 3)
    checkpoint = torch.load(tmp_path / 'iter_3.pth', weights_only=False)
    checkpoint['state_dict']['linear.weight'][:] = torch.nan
    torch.save(checkpoint, tmp_path / 'iter_3.pth')
    path, _, notes = newest_checkpoint(str(tmp_path), trusted=False)
    assert path.name == 'iter_2.pth'
    assert 'linear.weight that are infinite or none' in notes[0]


def test_a_copy_is_resumed_from_its_own_newest_checkpoint(tmp_path):
    """Whatever the times of its files, and though mmengine notes the path of the original."""
    interrupted(tmp_path / 'a', 4)
    (tmp_path / 'b').mkdir()
    for step in (3, 2, 1):
        name = f'iter_{step}.pth'
        (tmp_path / 'b' / name).write_bytes((tmp_path / 'a' / name).read_bytes())
    pointer = (tmp_path / 'a/last_checkpoint').read_text()
    assert pointer.endswith('a/iter_4.pth')
    (tmp_path / 'b/last_checkpoint').write_text(pointer)
    path, _, notes = newest_checkpoint(str(tmp_path / 'b'), trusted=False)
    assert path == tmp_path / 'b/iter_3.pth'
    assert notes == []


def test_checkpoints_written_elsewhere_are_found(tmp_path):
    elsewhere = {'default_hooks.checkpoint.out_dir': str(tmp_path / 'elsewhere')}
    interrupted(tmp_path / 'run', 3, **elsewhere)
    path, _, _ = newest_checkpoint(str(tmp_path / 'run'), trusted=False)
    assert path == tmp_path / 'elsewhere/run/iter_3.pth'
    resumed(tmp_path / 'run', **elsewhere)


def test_a_torn_line_of_the_log_is_written_anew(tmp_path):
    interrupted(tmp_path, 3)
    with (tmp_path / 'losses.jsonl').open('a') as file:
        file.write('{"iter": 4, "lo')
    resumed(tmp_path)
    steps = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert steps == list(range(1, 9))


def test_a_newest_checkpoint_that_is_cut_off_is_said_and_the_one_before_it_taken(tmp_path):
    interrupted(tmp_path, 4)
    newest = tmp_path / 'iter_4.pth'
    os.truncate(newest, newest.stat().st_size // 2)
    path, checkpoint, notes = newest_checkpoint(str(tmp_path), trusted=False)
    assert path.name == 'iter_3.pth'
    assert checkpoint['meta']['iter'] == 3
    (note,) = notes
    assert 'iter_4.pth cannot be read: it is cut off' in note
    assert note.endswith('; iter_3.pth is taken')
    resumed(tmp_path)


def test_no_checkpoint_that_can_be_read_is_an_error_that_names_them(tmp_path):
    interrupted(tmp_path, 2)
    for path in tmp_path.glob('iter_*.pth'):
        path.write_bytes(b'')
    with pytest.raises(
        UserError, match=r'no checkpoint in .* can be gone on with: .*iter_1.*iter_2'
    ):
        newest_checkpoint(str(tmp_path), trusted=False)
    with pytest.raises(UserError, match='holds no checkpoint to go on from'):
        newest_checkpoint(str(tmp_path / 'other'), trusted=False)


def test_the_config_in_a_checkpoint_is_not_run(tmp_path):
    """Mmengine would: it reads ``meta.config`` as a Python file."""
    interrupted(tmp_path, 2)
    checkpoint = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    checkpoint['meta']['config'] = f'import os\nos.mkdir({str(tmp_path / "trace")!r})'
    torch.save(checkpoint, tmp_path / 'iter_2.pth')
    resumed(tmp_path)
    assert not (tmp_path / 'trace').exists()


@pytest.mark.parametrize('pointer', ['\0', 'x' * 5000, 'run/' * 900 + 'iter_1.pth', '/', ''])
def test_a_note_of_the_last_checkpoint_that_is_no_path_is_passed_over(tmp_path, pointer):
    folder = tmp_path / 'run'
    (folder / 'iter_3.pth').mkdir(parents=True)
    (folder / 'last_checkpoint').write_text(pointer)
    with pytest.raises(UserError, match='holds no checkpoint'):
        newest_checkpoint(str(folder), trusted=False)
    (folder / 'epoch_3.pth').symlink_to(tmp_path / 'nowhere')
    aside = set_run_aside(str(folder))
    assert {path.name for path in aside.iterdir()} == {
        'iter_3.pth',
        'epoch_3.pth',
        'last_checkpoint',
    }


@pytest.mark.parametrize('max_iters, runs', [(1, 1), (2, 1), (3, 0)])
def test_a_run_that_is_past_its_end_is_evaluated_once_more(max_iters, runs):
    """As where the option is lowered for a resume."""
    evaluated = []
    loop = ResumableIterLoop.__new__(ResumableIterLoop)
    loop.val_interval, loop.val_begin = 5, 1
    loop._runner = SimpleNamespace(val_loop=SimpleNamespace(run=lambda: evaluated.append(1)))
    loop._validate(2, max_iters)
    assert len(evaluated) == runs
