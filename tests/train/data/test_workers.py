"""Data workers that fail, hang, or are sent a signal; started by a fork server, as in a run."""

import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from tempfile import TemporaryFile

import numpy as np
import pytest
import torch
from helpers import TIMEOUT, wait_until, wait_until_session_ends
from helpers.tool_server import Process
from helpers.toy import ToyDataset, toy_loader

from xcit_mm import UserError


@pytest.fixture(autouse=True, scope='module')
def _fork_server() -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method('forkserver', force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


class Failing(ToyDataset):
    """A dataset whose worker fails in a way of its own before it loads a sample."""

    def __init__(self, failure: str) -> None:
        super().__init__()
        self.failure = failure

    def __getitem__(self, index: int) -> dict:
        sample = super().__getitem__(index)
        if self.failure == 'unsendable':
            sample['more'] = lambda: 0
        elif self.failure == 'larger than shared memory':  # of a container, which has 64 MB
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
            sample['inputs'] = torch.ones(2**22)
        elif self.failure == 'slow':
            time.sleep(1.5)
        elif self.failure:
            os.kill(os.getpid(), getattr(signal, self.failure))
        return sample


class WithMasks(ToyDataset):
    """A dataset with a large array in each sample."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__()
        self.masks = np.arange(3 * 256 * 256).reshape(3, 256, 256).astype(dtype)

    def __getitem__(self, index: int) -> dict:
        return super().__getitem__(index) | {'masks': self.masks[..., ::-1][..., ::-1]}


SLOW_MODULE = """
import time
from pathlib import Path

folder = Path(__file__).parent
(folder / 'imported').touch()
while not (folder / 'go').exists():
    time.sleep(0.01)
"""
PROGRAM = """
import multiprocessing, os, signal, sys, time
from pathlib import Path

from xcit_mm.train.data.workers import start_fork_server

sys.path.append({folder!r})
multiprocessing.set_start_method('forkserver')
start_fork_server('slow')
while not Path({folder!r}, 'imported').exists():
    time.sleep(0.01)
lock = multiprocessing.Lock()
worker = multiprocessing.Process(target=print, args=('loaded', lock))
"""
IGNORED = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
Path({folder!r}, 'go').touch()
worker.start()
worker.join()
"""


def test_the_fork_server_outlives_ctrl_c_while_it_imports(tmp_path):
    """It reaches all processes. The run finishes its step."""
    (tmp_path / 'slow.py').write_text(SLOW_MODULE)
    with TemporaryFile('w+') as output:
        program = (PROGRAM + IGNORED).format(folder=str(tmp_path))
        process = Process(['-c', program], output, output)
        assert process.wait() == 0
        wait_until_session_ends(process.pid)
        output.seek(0)
        assert output.read().startswith('loaded <Lock')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_the_whole_group(number):
    batches = iter(toy_loader(Failing(''), workers=1))
    next(batches)
    (child,) = multiprocessing.active_children()
    subprocess.run(['kill', f'-{int(number)}', str(child.pid)], check=True)  # not by the training
    time.sleep(0.3)
    assert len(list(islice(batches, 10))) == 10
    assert child.is_alive()


def test_a_worker_ends_at_a_signal_of_the_training():
    batches = iter(toy_loader(Failing(''), workers=1))
    next(batches)
    (child,) = multiprocessing.active_children()
    child.terminate()
    child.join(TIMEOUT)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ('failure', 'training'),
    [
        ('unsendable', True),
        ('larger than shared memory', True),
        ('SIGKILL', False),
    ],
)
def test_workers_that_fail_end_the_run(failure, training):
    match = r'the processes that load data have failed \(.*DataLoader worker.*num_workers=0'
    with pytest.raises(UserError, match=match):
        next(iter(toy_loader(Failing(failure), 2, training)))


def test_workers_that_are_stopped_end_the_run_after_the_timeout():
    message = r'the 2 processes that load data have sent no batch for \d+ sec.*num_workers=0'
    with pytest.raises(UserError, match=message):
        next(iter(toy_loader(Failing('SIGSTOP'), 2, timeout=2)))
    wait_until(lambda: not multiprocessing.active_children())


def test_large_arrays_are_sent_in_shared_memory():
    dataset = WithMasks(np.dtype('uint8'))
    (sample,) = next(iter(toy_loader(dataset, 1, batch_size=1)))['masks']
    assert np.array_equal(sample, dataset.masks)
    assert sample.base.is_shared()  # the tensor that was sent
