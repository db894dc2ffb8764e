"""One training writes to a folder: the others are refused until it has ended."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.processes import start_forks
from helpers.runs import SEGMENTOR, options
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.train.checkpoints import run_lock

IN_USE = 'is in use by another training run'


def hold(folder: Path):
    return run_lock.run_lock(Config(dict(work_dir=str(folder), launcher='none')))


@contextmanager
def process(function: Callable[[], object]) -> Iterator[int]:
    """Fork a process that calls a function and stays until it is killed."""
    read, write = os.pipe()
    (child,) = start_forks(1, lambda rank: (function(), os.write(write, b'.'), time.sleep(10**6)))
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


def test_a_second_holder_is_refused(tmp_path):
    with holder(tmp_path):
        for _ in range(2):  # a refusal changes nothing
            with pytest.raises(UserError, match=IN_USE), hold(tmp_path):
                pass
    with hold(tmp_path):  # free at once after a kill
        pass


def test_a_restarted_run_waits_for_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')
    monkeypatch.setattr(run_lock, 'TIMEOUT', 600)
    with holder(tmp_path) as pid:
        end = process(lambda: (time.sleep(1), os.kill(pid, signal.SIGKILL)))
        with end, hold(tmp_path):
            pass


def test_a_second_training_changes_nothing_of_the_first(monkeypatch, capfd, shapes_root, tmp_path):
    def files() -> dict[str, bytes]:
        paths = sorted(path for path in tmp_path.rglob('*') if path.is_file())
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in paths}

    (tmp_path / 'iter_2.pth').write_bytes(b'of the first')
    (tmp_path / 'losses.jsonl').write_text('{}')
    with holder(tmp_path):
        before = files()
        arguments = ['--resume', '--work-dir', tmp_path, *options(shapes_root, 2)]
        code, _, error = call_tool(monkeypatch, capfd, 'train.py', ROOT / SEGMENTOR, *arguments)
        assert code == 2 and IN_USE in error
        assert files() == before
