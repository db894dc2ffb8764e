"""Checkpoints that are killed while they are written, or do not fit on the disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_interruptions import steps
from test_tools import SEGMENTOR, options

from xcit_mm.engine.checkpoints import newest_checkpoint

NUM_KILLS = 100
KEPT = 2


def test_a_kill_while_one_is_written_leaves_one_that_can_be_read(tmp_path):
    done = subprocess.run(
        [sys.executable, 'tests/killed_writes.py', *map(str, (tmp_path, NUM_KILLS, KEPT))],
        cwd=ROOT,
        env=os.environ | {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    *lines, last = done.stdout.splitlines()
    newest, unfinished = zip(*(map(int, line.split()) for line in lines), strict=True)
    assert len(newest) == NUM_KILLS
    assert list(newest) == sorted(newest)  # what was there once is never lost
    assert newest[-1] > KEPT
    assert sum(unfinished) > NUM_KILLS / 4  # that many were hit in the midst of it
    assert max(unfinished) == 1  # the next run clears it away
    # Each kill may leave one more than is kept, until the next one is whole.
    names = [f'iter_{number}.pth' for number in (newest[-1], newest[-1] + 1)]
    assert last == ' '.join(['at the end', *sorted(names)])


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 80 MB, where the system lets us mount one."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=80m', 'tmpfs', str(folder)]
    if shutil.which('mount') is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip('no disk can be mounted here')
    yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_what_was_written(run_tool, shapes_root, small_disk):
    """A checkpoint takes 54 MB: the second one does not fit beside the first."""
    work_dir = small_disk / 'work'
    arguments = ['--work-dir', work_dir, *options(shapes_root, 6)]
    arguments += [
        'default_hooks.checkpoint.interval=2',
        'default_hooks.checkpoint.max_keep_ckpts=1',
    ]
    done = run_tool('train.py', SEGMENTOR, *arguments)
    assert done.returncode == 2, done.stderr[-3000:]
    assert 'Traceback' not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert f'the checkpoint {work_dir}/iter_4.pth cannot be written' in message
    assert 'No space left on device' in message
    assert 'make room, and go on from the last one with --resume' in message
    path, checkpoint, _ = newest_checkpoint(str(work_dir), trusted=False)
    assert path == work_dir / 'iter_2.pth'
    assert checkpoint['meta']['iter'] == 2
    assert list(work_dir.glob('.*.pth.*')) == []

    subprocess.run(['mount', '-o', 'remount,size=200m', str(small_disk)], check=True)
    done = run_tool('train.py', SEGMENTOR, '--resume', *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(work_dir) == list(range(1, 7))


def test_a_disk_that_is_full_before_the_run_is_said(run_tool, shapes_root, small_disk):
    fill(small_disk)
    arguments = ['--work-dir', small_disk, *options(shapes_root, 2)]
    done = run_tool('train.py', SEGMENTOR, *arguments)
    assert done.returncode == 2, done.stderr[-3000:]
    assert 'No space left on device' in done.stderr.strip().splitlines()[-1]
    assert 'Traceback' not in done.stderr


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match='No space left'), (disk / 'ballast').open('wb') as file:
        while True:
            file.write(b'0' * 2**16)
