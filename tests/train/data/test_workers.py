"""Data workers that fail, hang, or are sent a signal; started by a fork server, as in a run."""

import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from helpers import TIMEOUT, wait_until
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
