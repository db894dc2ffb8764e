"""Checkpoints of a run are whole, the last ones stay, and no file of others is touched."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.evaluated_runs import evaluated_run
from helpers.resumed_runs import assert_same_run, hooks, interrupted, names, resumed
from helpers.runs import Running, steps
from helpers.small_xcit import small_xcit
from helpers.toy import Toy, toy_runner
from mmengine.registry import MODELS
from torch import nn

from xcit_mm import UserError
from xcit_mm.base.run_files import require_checkpoints
from xcit_mm.network.weights.names import architecture
from xcit_mm.train.checkpoints.checkpoint_hook import WholeCheckpointHook
from xcit_mm.train.checkpoints.newest import newest_checkpoint
from xcit_mm.train.runner import CheckedRunner

KEPT, KILLS = 2, 10


def test_a_kill_while_one_is_written_leaves_one_that_can_be_read(tmp_path):
    returned, output = Running('tests/helpers/killed_writes.py', tmp_path, KILLS, KEPT).end()
    assert returned == 0, output[-3000:]
    lines = re.findall(r'^killed: (\d+) (\d+)$', output, re.MULTILINE)
    newest, unfinished = zip(*(map(int, line) for line in lines), strict=True)
    assert len(newest) == KILLS
    assert list(newest) == sorted(newest)  # what was there once is never lost
    assert newest[-1] > KEPT
    assert sum(unfinished) >= KILLS // 2  # every second kill is in the middle of a write
    assert max(unfinished) == 1  # the next run clears it away
    # Each kill may leave one more than is kept, until the next one is whole.
    names = [f'iter_{number}.pth' for number in (newest[-1], newest[-1] + 1)]
    assert ' '.join(['at the end', *sorted(names)]) in output


@MODELS.register_module()
class HeavyToy(Toy):
    """Its checkpoints take 4 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('ballast', torch.zeros(10**6))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 7 MB, where the system can mount one."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=7m', 'tmpfs', str(folder)]
    if shutil.which('mount') is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip('no disk can be mounted here')
    yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_what_was_written(small_disk):
    """The second checkpoint does not fit on the disk in addition to the first."""
    work_dir, options = small_disk / 'work', {'model.type': 'HeavyToy', 'steps': 3}
    options['default_hooks.checkpoint.max_keep_ckpts'] = 1
    message = (
        rf'the checkpoint {work_dir}/iter_2\.pth cannot be written \(.*No space left on device'
    )
    with pytest.raises(UserError, match=rf'{message}.*make room, and resume the run with --resume'):
        toy_runner(work_dir, **options).train()
    assert newest_checkpoint(str(work_dir)) == (work_dir / 'iter_1.pth', [])
    assert list(work_dir.glob('.*.pth.*')) == []
    subprocess.run(['mount', '-o', 'remount,size=100m', str(small_disk)], check=True)
    resumed(work_dir, **options)
    assert steps(work_dir) == [1, 2, 3]


def test_the_last_checkpoints_and_files_of_others_stay(tmp_path, monkeypatch):
    """Two runs in a row are killed with the new checkpoint on the disk, the old one not removed."""
    keep = {'default_hooks.checkpoint.max_keep_ckpts': 2}
    (tmp_path / '.iter_1.pth.x.unfinished').touch()
    interrupted(tmp_path, 2, **keep)
    assert not list(tmp_path.glob('.*.unfinished'))
    others = ('model_best.pth.tar', 'epoch_12.pth.md5', 'iter_1.backup.pth', 'my_iter_1.pth')
    for name in others:
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:
        save = CheckedRunner.save_checkpoint

        def killed(*args, **kwargs) -> None:
            save(*args, **kwargs)
            raise RuntimeError('planted')

        patch.setattr(CheckedRunner, 'save_checkpoint', killed)
        for _ in range(2):
            with pytest.raises(RuntimeError, match='planted'):
                resumed(tmp_path, **keep)
    assert set(names(tmp_path)) - {*others} == {f'iter_{step}.pth' for step in (1, 2, 3, 4)}
    resumed(tmp_path, steps=5, **keep)
    assert set(names(tmp_path)) - {*others} == {'iter_4.pth', 'iter_5.pth'}
    assert (tmp_path / 'last_checkpoint').read_text().endswith('iter_5.pth')
    assert all((tmp_path / name).is_file() for name in others)


def test_a_damaged_newer_checkpoint_does_not_displace_those_of_the_resumed_run(tmp_path):
    keep = {'default_hooks.checkpoint.max_keep_ckpts': 1}
    interrupted(tmp_path, 2, **keep)
    (tmp_path / 'iter_9.pth').write_bytes(b'damaged')
    resumed(tmp_path, steps=4, **keep)
    assert set(names(tmp_path)) == {'iter_4.pth', 'iter_9.pth'}


def best(metrics: str | list[str]) -> dict:
    hook = 'default_hooks.checkpoint'
    return {f'{hook}.save_best': metrics, f'{hook}.rule': 'greater'}


def test_a_checkpoint_names_no_file_of_others_to_remove(tmp_path):
    """By a path elsewhere, a link, a folder, or a file that the hook did not write."""
    run = tmp_path / 'run'
    options = {'default_hooks.checkpoint.max_keep_ckpts': 1, **best(['acc', 'miou'])}
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
    for name in (str(tmp_path / 'notes.txt'), str(folders[1]), str(run / 'losses.jsonl'), 5):
        info = dict.fromkeys(['best_ckpt', 'best_ckpt_acc', 'best_ckpt_miou'], name)
        info['keep_ckpt_ids'] = [77, 79, '../notes.txt', {}] * 3
        checkpoint = torch.load(tmp_path / 'base.pth', weights_only=False)
        checkpoint['message_hub']['runtime_info'].update(info)
        checkpoint['message_hub']['resumed_keys'].update(dict.fromkeys(info, True))
        torch.save(checkpoint, run / 'iter_2.pth')
        score(run, **options)
        assert [path for path in others if not os.path.lexists(path)] == [], name


def score(run, **options) -> None:
    """Resume a run for one step, which has the best metrics so far."""
    options |= {'custom_hooks': [*hooks(), dict(type='ScoreHook')], 'steps': 3}
    runner = toy_runner(run, resume=True, load_from=str(run / 'iter_2.pth'), **options)
    runner.train()


@pytest.mark.parametrize('metrics', ['acc', ['acc', 'miou']])
def test_a_run_that_was_moved_keeps_its_own_best_checkpoint_only(tmp_path, metrics):
    scored = [dict(type='ScoreHook'), dict(type='StopHook', after=2)]
    runner = toy_runner(tmp_path / 'a', custom_hooks=hooks(*scored), **best(metrics))
    with pytest.raises(RuntimeError, match='planted'):
        runner.train()
    shutil.copytree(tmp_path / 'a', tmp_path / 'b')
    before = names(tmp_path / 'a')
    score(tmp_path / 'b', **best(metrics))
    assert names(tmp_path / 'a') == before
    kept = [{n for n in names(tmp_path / run) if n.startswith('best_')} for run in ('a', 'b')]
    assert len(kept[0]) == len(kept[1]) == (2 if isinstance(metrics, list) else 1)
    assert not kept[0] & kept[1]


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
    runner.train()
    assert other.read_text() == 'of the user'
    assert 'ToyDataset' in (work_dir / 'toy.py').read_text()


def test_a_new_run_sets_the_earlier_one_aside_once_it_can_begin(tmp_path):
    interrupted(tmp_path, 2)
    before = names(tmp_path)
    with pytest.raises(KeyError):
        toy_runner(tmp_path, **{'train_dataloader.dataset.type': 'Missing'}).train()
    assert names(tmp_path) == before
    toy_runner(tmp_path, steps=1).train()
    assert names(tmp_path) == ['iter_1.pth']
    (folder,) = tmp_path.glob('earlier_*')
    assert names(folder) == before and (folder / 'losses.jsonl').is_file()
    (tmp_path / 'iter_1.pth').unlink()
    with pytest.raises(UserError, match=f'or resume an earlier run with --work-dir {folder}'):
        require_checkpoints(str(tmp_path))


def test_checkpoints_of_an_earlier_run_in_an_out_dir_stay(tmp_path):
    out_dir = tmp_path / 'out' / 'work'
    out_dir.mkdir(parents=True)
    (out_dir / 'iter_1.pth').touch()
    options = {'max_keep_ckpts': 1, 'out_dir': str(out_dir.parent), 'interval': 2}
    options = {f'default_hooks.checkpoint.{name}': value for name, value in options.items()}
    toy_runner(tmp_path / 'work', steps=6, **options).train()
    assert sorted(path.name for path in out_dir.iterdir()) == ['iter_1.pth', 'iter_6.pth']


def targets(folder: Path) -> list[str]:
    return [str((folder / name).readlink()) for name in ('best.pth', 'last.pth')]


def test_links_name_the_newest_and_the_best_checkpoint_of_a_run_that_is_resumed(tmp_path):
    """Also if a kill left a link without its file, and wherever the folder is moved to."""
    run, moved = tmp_path / 'run', tmp_path / 'moved'
    options = {'default_hooks.checkpoint.save_best': 'mIoU', 'default_hooks.checkpoint.interval': 2}
    options |= {'model.scores': [0, 0, 0.3, 0, 0.2, 0, 0.4, 0, 0.1]}
    whole = evaluated_run(tmp_path / 'whole', **options)
    whole.train()
    stop = dict(type='StopHook', after=5)
    with pytest.raises(RuntimeError, match='planted'):
        evaluated_run(run, stop, **options).train()
    assert targets(run) == ['best_mIoU_iter_2.pth', 'iter_4.pth']
    run.rename(moved)
    (moved / 'best_mIoU_iter_2.pth').unlink()
    options |= dict(resume=True, load_from=str(moved / 'last.pth'))
    with pytest.raises(RuntimeError, match='planted'):
        evaluated_run(moved, stop, **options).train()
    assert not os.path.lexists(moved / 'best.pth')
    evaluated_run(moved, **options).train()
    assert_same_run(tmp_path / 'whole', moved, 8)
    for folder in (tmp_path / 'whole', moved):
        assert targets(folder) == ['best_mIoU_iter_6.pth', 'iter_8.pth']
    evaluated_run(moved, steps=2).train()  # a new run, without a best checkpoint
    (aside,) = moved.glob('earlier_*')
    assert (aside / 'best.pth').resolve() == aside / 'best_mIoU_iter_6.pth'
    assert not os.path.lexists(moved / 'best.pth')
    assert (moved / 'last.pth').resolve() == moved / 'iter_2.pth'


def test_a_run_resumes_from_its_best_checkpoint(tmp_path):
    options = {'default_hooks.checkpoint.save_best': 'mIoU', 'default_hooks.checkpoint.interval': 2}
    options |= {'model.scores': [0, 0, 0.3, 0, 0.2, 0, 0.4, 0, 0.1]}
    whole, other = tmp_path / 'whole', tmp_path / 'other'
    evaluated_run(whole, **options).train()
    stop = dict(type='StopHook', after=7)
    with pytest.raises(RuntimeError, match='planted'):
        evaluated_run(other, stop, **options).train()
    source = str(other / 'best.pth')
    assert Path(source).resolve().name == 'best_mIoU_iter_6.pth'
    evaluated_run(other, **options, resume=True, load_from=source).train()
    assert_same_run(whole, other, 8)
    assert targets(other) == ['best_mIoU_iter_6.pth', 'iter_8.pth']


def test_links_lead_to_a_separate_folder_of_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy_runner(tmp_path / 'run', steps=2, **{'default_hooks.checkpoint.out_dir': 'out'}).train()
    assert (tmp_path / 'run/last.pth').samefile(tmp_path / 'out/run/iter_2.pth')


def test_without_links_and_beside_a_file_of_the_user_a_run_says_so_once(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    mine, lines = tmp_path / 'mine' / 'last.pth', {}
    mine.parent.mkdir()
    mine.write_text('of the user')
    toy_runner(mine.parent, steps=2, log_level='INFO').train()
    assert mine.read_text() == 'of the user'
    monkeypatch.setattr(Path, 'symlink_to', refuse)
    toy_runner(tmp_path / 'none', steps=2, log_level='INFO').train()
    for folder in ('mine', 'none'):
        (log,) = tmp_path.glob(f'{folder}/*/*.log')
        lines[folder] = re.findall('No link (.*)', log.read_text())
    assert lines == dict(
        mine=[f'last.pth is made: {mine} is not a link, and stays as it is'],
        none=['best.pth or last.pth is made: PermissionError: [Errno 1] Operation not permitted'],
    )


def test_a_checkpoint_says_whether_patches_have_4_or_16_pixels():
    checkpoint = dict(meta={})
    model = nn.Module()
    model.backbone = small_xcit(4)
    runner = SimpleNamespace(model=model)
    WholeCheckpointHook(interval=1).before_save_checkpoint(runner, checkpoint)
    state = model.state_dict()
    assert architecture(state, 'iter_1.pth', checkpoint).patch_size == 4
    assert architecture(state, 'iter_1.pth').patch_size == 16
