"""A folder that one process writes to: the others are told who does, until it has ended."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.runs import SEGMENTOR, Running, options
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.engine import run_lock

IN_USE = 'is in use by another training'


def hold(folder: Path):
    return run_lock.run_lock(Config(dict(work_dir=str(folder), launcher='none')))


@contextmanager
def process(function: Callable[[], object]) -> Iterator[int]:
    """A process forked from this one that calls a function and stays until it is killed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            function()
            os.write(write, b'.')
            time.sleep(10**6)
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1), 'the process has failed'
    os.close(read)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def holder(folder: Path) -> Iterator[int]:
    lock = hold(folder)
    with process(lock.__enter__) as pid:
        yield pid


def test_a_folder_that_is_held_is_refused_with_who_holds_it(tmp_path):
    with holder(tmp_path) as pid:
        match = rf'{IN_USE} \(process {pid} on \S+, since \d{{4}}-[\d-]+ [\d:]+\)'
        for _ in range(2):  # to be refused changes nothing
            with pytest.raises(UserError, match=match), hold(tmp_path):
                pass
    with hold(tmp_path) as notes:  # killed: free at once
        assert notes == []
    with hold(tmp_path):  # a second run of the same process
        pass


@pytest.mark.parametrize('kind', ['link', 'link to nothing', 'folder', 'pipe'])
def test_a_lock_that_is_none_is_refused(tmp_path, kind):
    other, lock = tmp_path / 'other', tmp_path / 'work' / 'run.lock'
    lock.parent.mkdir()
    if kind == 'link':
        other.write_text('of the user')
    if kind.startswith('link'):
        lock.symlink_to(other)
    else:
        (Path.mkdir if kind == 'folder' else os.mkfifo)(lock)
    with pytest.raises(UserError, match=r'run\.lock is a link, a folder or a device'):
        hold(lock.parent).__enter__()
    assert other.exists() == (kind == 'link') and (not other.exists() or other.read_text())


def test_processes_that_the_holder_has_forked_do_not_hold_the_folder(tmp_path):
    """As data workers do, which may outlive it by some seconds."""
    lock = hold(tmp_path)
    lock.__enter__()
    with process(lambda: None):
        lock.__exit__(None, None, None)
        with holder(tmp_path):
            pass


def test_a_restarted_run_waits_for_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    monkeypatch.setattr(run_lock, 'PATIENCE', 600)
    with holder(tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        end = process(lambda: (time.sleep(1), os.kill(pid, signal.SIGKILL)))
        with end, hold(tmp_path):
            pass


def test_a_disk_without_locks_is_a_note(tmp_path, monkeypatch):
    def lockf(*args):
        raise OSError(37, 'No locks available')

    monkeypatch.setattr('fcntl.lockf', lockf)  # for want of such a disk
    with hold(tmp_path) as notes:
        assert len(notes) == 1
        assert 'has no locks (OSError: [Errno 37] No locks available)' in notes[0]


def files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def a_run(tmp_path) -> Path:
    """The work dir of a training that goes on."""
    (tmp_path / 'iter_2.pth').write_bytes(b'of the first')
    (tmp_path / 'losses.jsonl').write_text('{}')
    with holder(tmp_path):
        yield tmp_path


@pytest.mark.parametrize('more', [[], ['--resume']], ids=['new', 'resumed'])
def test_a_second_training_leaves_the_first_one_alone(monkeypatch, capfd, shapes_root, a_run, more):
    before = files(a_run)
    arguments = [ROOT / SEGMENTOR, '--work-dir', a_run, *more, *options(shapes_root, 2)]
    code, _, error = call_tool(monkeypatch, capfd, 'train.py', *arguments)
    assert code == 2
    assert IN_USE in error.splitlines()[-1]
    assert files(a_run) == before


def test_all_processes_of_a_second_training_end(shapes_root, a_run):
    before = files(a_run)
    arguments = ['--work-dir', a_run, *options(shapes_root, 2)]
    running = Running('tools/dist_train.sh', SEGMENTOR, 2, *arguments, OMP_NUM_THREADS=1)
    returned, output, _ = running.end()
    assert returned != 0
    assert IN_USE in output
    assert files(a_run) == before
