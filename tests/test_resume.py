"""What a resumed run takes from its checkpoint, and what it does where the checkpoint is bad."""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import wait_until
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import HistoryBuffer
from mmengine.registry import DATASETS, HOOKS
from test_interruptions import steps
from toy import ToyDataset, toy_runner

from xcit_mm import UserError
from xcit_mm.engine.checkpoints import has_checkpoints, newest_checkpoint, set_run_aside
from xcit_mm.engine.interrupts import ONE_REQUEST
from xcit_mm.engine.loops import ResumableIterLoop
from xcit_mm.engine.pictures import PictureHook
from xcit_mm.engine.randomness import seed_all
from xcit_mm.engine.runner import CheckedRunner
from xcit_mm.errors import Interrupted

DRAWS: list[tuple[int, float, float, float]] = []


@HOOKS.register_module()
class DrawHook(Hook):
    """Draws from every generator in each step."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        numbers = random.random(), float(np.random.rand()), float(torch.rand(1))
        DRAWS.append((runner.iter, *numbers))


@HOOKS.register_module()
class StopHook(Hook):
    """Ends a run after an iteration, as if by an error."""

    priority = 'LOWEST'

    def __init__(self, after: int) -> None:
        self.after = after

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == self.after:
            raise RuntimeError('planted')


def hooks(*others: dict) -> list[dict]:
    names = 'FiniteHook', 'LossLogHook', 'BadDataHook', 'DrawHook'
    return [*(dict(type=name) for name in names), *others]


def interrupted(work_dir, after: int, **kwargs) -> None:
    runner = toy_runner(work_dir, custom_hooks=hooks(dict(type='StopHook', after=after)), **kwargs)
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()


def resumed(work_dir, **kwargs):
    path, _, _ = newest_checkpoint(str(work_dir), trusted=False)
    runner = toy_runner(work_dir, resume=True, load_from=str(path), custom_hooks=hooks(), **kwargs)
    runner.train()
    return runner


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


def test_files_of_others_beside_the_checkpoints_stay(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    for name in ('model_best.pth.tar', 'epoch_12.pth.md5', '.iter_1.pth.x.unfinished'):
        (tmp_path / name).touch()
    interrupted(tmp_path, 2)
    assert (tmp_path / 'model_best.pth.tar').is_file()
    assert (tmp_path / 'epoch_12.pth.md5').is_file()
    assert not list(tmp_path.glob('.*.unfinished'))


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


def test_a_checkpoint_of_another_optimizer_is_an_error(tmp_path):
    interrupted(tmp_path, 2)
    other = {'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(norm=dict(lr_mult=0.1)))}
    with pytest.raises(UserError, match=r'iter_2\.pth is not of a run like this one'):
        resumed(tmp_path, **other)


def test_the_config_in_a_checkpoint_is_not_run(tmp_path):
    """Mmengine would: it reads ``meta.config`` as a Python file."""
    interrupted(tmp_path, 2)
    checkpoint = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    checkpoint['meta']['config'] = f'import os\nos.mkdir({str(tmp_path / "trace")!r})'
    torch.save(checkpoint, tmp_path / 'iter_2.pth')
    resumed(tmp_path)
    assert not (tmp_path / 'trace').exists()


def test_the_last_checkpoints_are_kept_the_others_removed(tmp_path):
    keep = {'default_hooks.checkpoint.max_keep_ckpts': 2}
    interrupted(tmp_path, 3, **keep)
    assert names(tmp_path) == ['iter_2.pth', 'iter_3.pth']
    resumed(tmp_path, **keep)
    assert names(tmp_path) == ['iter_7.pth', 'iter_8.pth']
    assert (tmp_path / 'last_checkpoint').read_text().endswith('iter_8.pth')


def test_what_a_killed_run_did_not_remove_the_resumed_one_does(tmp_path, monkeypatch):
    """Twice in a row, each time with the new checkpoint on the disk and the old one not removed."""
    keep = {'default_hooks.checkpoint.max_keep_ckpts': 2}
    interrupted(tmp_path, 2, **keep)
    with monkeypatch.context() as patch:
        save = CheckedRunner.save_checkpoint

        def killed(*args, **kwargs) -> None:
            save(*args, **kwargs)
            raise RuntimeError('planted')

        patch.setattr(CheckedRunner, 'save_checkpoint', killed)
        for _ in range(2):
            with pytest.raises(RuntimeError, match='planted'):
                resumed(tmp_path, **keep)
    assert names(tmp_path) == [f'iter_{step}.pth' for step in (1, 2, 3, 4)]
    resumed(tmp_path, steps=5, **keep)
    assert names(tmp_path) == ['iter_4.pth', 'iter_5.pth']


def changed(path, **info) -> None:
    """Change what a checkpoint notes for later."""
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['message_hub']['runtime_info'].update(info)
    checkpoint['message_hub']['resumed_keys'].update(dict.fromkeys(info, True))
    torch.save(checkpoint, path)


@HOOKS.register_module()
class ScoreHook(Hook):
    """Has the checkpoint hook see better metrics after each iteration."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        metrics = {'acc': runner.iter, 'miou': runner.iter}
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and runner.iter:
                hook.after_val_epoch(runner, metrics)


@pytest.mark.parametrize('metrics', ['acc', ['acc', 'miou']])
def test_a_checkpoint_names_no_file_of_others_to_remove(tmp_path, metrics):
    """By a path elsewhere, a link, a folder, or a file that the hook did not write."""
    run = tmp_path / 'run'
    options = {
        'default_hooks.checkpoint.max_keep_ckpts': 1,
        'default_hooks.checkpoint.save_best': metrics,
        'default_hooks.checkpoint.rule': 'greater',
    }
    interrupted(run, 2, **options)
    others = [tmp_path / 'iter_1.pth', tmp_path / 'notes.txt', run / 'mine.pth', run / 'best_.pth']
    others += [tmp_path / 'best_acc_iter_1.pth', run / 'losses.jsonl', run / 'best_mine.pth']
    folders = [run / 'iter_77.pth', run / 'best_acc_iter_77.pth', run / 'x_78.pth']
    for path in others:
        path.touch()
    for path in folders:
        path.mkdir()
    (run / 'iter_79.pth').symlink_to(others[0])
    others += [*folders, run / 'iter_79.pth']
    shutil.copy(run / 'iter_2.pth', tmp_path / 'base.pth')
    noted = [*map(str, others), *(path.name for path in others)]
    noted += ['../iter_1.pth', '../notes.txt', '', '.', '..', 5, None, ['iter_1.pth'], '\0']
    for best in (str(tmp_path / 'notes.txt'), str(folders[1]), str(run / 'losses.jsonl'), 5):
        info = {'best_ckpt': best, 'best_ckpt_acc': best, 'best_ckpt_miou': best}
        info |= {'kept_checkpoints': noted, 'keep_ckpt_ids': [77, 79, '../notes.txt', {}] * 3}
        shutil.copy(tmp_path / 'base.pth', run / 'iter_2.pth')
        changed(run / 'iter_2.pth', **info)
        score(run, **options)
        assert [path for path in others if not os.path.lexists(path)] == [], best


def score(run, **options) -> None:
    """Resume a run for one step, which has the best metrics so far."""
    options |= {'custom_hooks': [*hooks(), dict(type='ScoreHook')], 'steps': 3}
    runner = toy_runner(run, resume=True, load_from=str(run / 'iter_2.pth'), **options)
    runner.train()


@pytest.mark.parametrize('metrics', ['acc', ['acc', 'miou']])
def test_a_run_that_was_moved_keeps_its_own_best_checkpoint_only(tmp_path, metrics):
    options = {
        'default_hooks.checkpoint.save_best': metrics,
        'default_hooks.checkpoint.rule': 'greater',
    }
    scored = [dict(type='ScoreHook'), dict(type='StopHook', after=2)]
    runner = toy_runner(tmp_path / 'a', custom_hooks=hooks(*scored), **options)
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()
    shutil.copytree(tmp_path / 'a', tmp_path / 'b')
    before = sorted(path.name for path in (tmp_path / 'a').glob('best_*'))
    score(tmp_path / 'b', **options)
    assert sorted(path.name for path in (tmp_path / 'a').glob('best_*')) == before
    after = sorted(path.name for path in (tmp_path / 'b').glob('best_*'))
    assert len(after) == len(before) == (2 if isinstance(metrics, list) else 1)
    assert not set(after) & set(before)


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


SCHEDULED = {
    'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)],
    'default_hooks.checkpoint.save_best': 'acc',
    'default_hooks.checkpoint.rule': 'greater',
    'steps': 3,
}
INFO = 'message_hub.runtime_info.'
WRONG = {
    'ema_state_dict': [None, 3, {'module.linear.bias': torch.zeros(3)}, {'steps': torch.zeros(3)}],
    'message_hub.log_scalars.train/lr': [None, [1.0], HistoryBuffer([], [])],
    'message_hub.log_scalars.train/\x1b[2J': [HistoryBuffer([1.0], [1])],
    'message_hub.resumed_keys.iter': [False, 'a'],
    f'{INFO}bad_data': [None, 3, ['a'], {'a': 1}],
    f'{INFO}share_of_the_data': [3, {'images a step': np.zeros(3)}],
    f'{INFO}best_score': [None, 'a', float('nan'), torch.zeros(3)],
    f'{INFO}eta': ['a', float('inf')],
    f'{INFO}{"x" * 10**5}': [1],
    'meta.iter': ['2', -1, 2**70],
    'meta.seed': ['a', 2**40],
    'optimizer.state.0': [None, {'step': 1}, {'momentum_buffer': torch.zeros(2)}],
    'optimizer.state.0.step': [0, 'a', torch.zeros(3)],
    'optimizer.state.0.exp_avg': [1.0, torch.zeros(3), torch.full((2,), torch.nan)],
    'optimizer.state.0.more': [np.zeros(3)],
    'optimizer.param_groups.0': [{}, {'params': [0]}],
    'optimizer.param_groups.0.lr': ['a', None, [0.1], 10**600],
    'optimizer.param_groups.0.betas': [0.9, (0.9,), ('a', 'b'), (1, 2)],
    'optimizer.param_groups.0.amsgrad': [True, 'a'],
    'optimizer.base_param_settings': [3, {}],
    'param_schedulers.0.step': [3],
    'param_schedulers.0.last_step': ['a', None],
    'param_schedulers.0.param_name': ['betas'],
    'param_schedulers.0._last_value': [3, [], ['a']],
}


def test_a_state_of_another_kind_is_refused_in_a_sentence(tmp_path):
    """What the run would fail over in mmengine or PyTorch, at once or hours later."""
    both = [dict(type='EMAHook'), dict(type='ScoreHook')]
    runner = toy_runner(
        tmp_path, custom_hooks=hooks(*both, dict(type='StopHook', after=2)), **SCHEDULED
    )
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()
    runner._resume = True  # as one that was built to be resumed
    path = tmp_path / 'iter_2.pth'
    genuine = path.read_bytes()
    runner.resume(str(path))
    for place, values in WRONG.items():
        for value in values:
            path.write_bytes(genuine)
            plant(path, place, value)
            with pytest.raises(UserError, match=r'iter_2\.pth') as error:
                runner.resume(str(path))
            assert str(error.value).isprintable() and len(str(error.value)) < 2500, place


@pytest.mark.parametrize('max_iters, runs', [(1, 1), (2, 1), (3, 0)])
def test_a_run_that_is_past_its_end_is_evaluated_once_more(max_iters, runs):
    """As where the option is lowered for a resume."""
    evaluated = []
    loop = ResumableIterLoop.__new__(ResumableIterLoop)
    loop.val_interval, loop.val_begin = 5, 1
    loop._runner = SimpleNamespace(val_loop=SimpleNamespace(run=lambda: evaluated.append(1)))
    loop._validate(2, max_iters)
    assert len(evaluated) == runs


def test_no_link_leads_a_run_out_of_its_folder(tmp_path):
    """The config and pictures are written there, among others, under names that are known."""
    work_dir, other = tmp_path / 'work', tmp_path / 'other.py'
    work_dir.mkdir()
    other.write_text('of the user')
    cfg = toy_runner(tmp_path / 'first').cfg
    cfg.work_dir, cfg.experiment_name = str(work_dir), 'links'
    vars(cfg)['_filename'] = 'toy.py'
    (work_dir / 'toy.py').symlink_to(other)
    runner = CheckedRunner.from_cfg(cfg)
    assert other.read_text() == 'of the user'
    assert 'ToyDataset' in (work_dir / 'toy.py').read_text()
    (work_dir / 'pictures').symlink_to(tmp_path)
    with pytest.raises(UserError, match='pictures is a link'):
        PictureHook().before_train(runner)


def plant(path, place: str, value) -> None:
    """Exchange what is at a dotted place of a checkpoint."""
    checkpoint = node = torch.load(path, weights_only=False)
    *outer, last = [int(part) if part.isdecimal() else part for part in place.split('.')]
    for part in outer:
        node = node[part]
    node[last] = value
    torch.save(checkpoint, path)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.glob('*.pth'))


def test_an_earlier_run_is_set_aside_not_replaced(tmp_path):
    assert set_run_aside(str(tmp_path)) is None
    interrupted(tmp_path, 2)
    before = names(tmp_path)
    folder = set_run_aside(str(tmp_path))
    assert names(folder) == before
    assert (folder / 'losses.jsonl').is_file()
    assert names(tmp_path) == []
    assert not has_checkpoints(str(tmp_path))
    with pytest.raises(UserError, match=f'of earlier runs there are --work-dir {folder}'):
        newest_checkpoint(str(tmp_path), trusted=False)


def test_a_new_run_sets_the_earlier_one_aside_once_it_can_begin(tmp_path):
    interrupted(tmp_path, 2)
    before = names(tmp_path)
    with pytest.raises(KeyError):
        toy_runner(tmp_path, **{'train_dataloader.dataset.type': 'Missing'}).train()
    assert names(tmp_path) == before
    toy_runner(tmp_path, steps=1).train()
    assert names(tmp_path) == ['iter_1.pth']
    (folder,) = tmp_path.glob('earlier_*')
    assert names(folder) == before
