"""Data workers that fail, hang, or are sent a signal; started by a fork server, as in a run."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from helpers.toy import ToyDataset
from mmengine.dataset import DefaultSampler, pseudo_collate
from torch.utils.data import DataLoader

from xcit_mm import UserError
from xcit_mm.engine.data.loader import CheckedLoader, evaluation_loader, training_loader

NEW_MOUNTS = 0x00020000  # unshare's CLONE_NEWNS
NO_SMALL_DISK = 77  # an exit code


@pytest.fixture(autouse=True, scope='module')
def _fork_server() -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method('forkserver', force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


class Failing(ToyDataset):
    """Its worker does what it is told before it gives a sample."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __getitem__(self, index: int) -> dict:
        sample = super().__getitem__(index)
        if self.what == 'unsendable':
            sample['more'] = lambda: 0
        elif self.what == 'large':
            sample['inputs'] = torch.ones(2**22)
        elif self.what == 'killed':
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == 'stopped':
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.what == 'slow':
            time.sleep(3)
        return sample


def loader(dataset: ToyDataset, workers: int = 1, training: bool = True, **kwargs) -> CheckedLoader:
    inner = DataLoader(
        dataset,
        sampler=DefaultSampler(dataset, shuffle=True, seed=5),
        collate_fn=pseudo_collate,
        num_workers=workers,
        **kwargs,
    )
    built = evaluation_loader(inner)
    return training_loader(built, 7, endless=True) if training else built


def workers_alive() -> list[int]:
    return [child.pid for child in multiprocessing.active_children()]


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_the_whole_group(number):
    batches = iter(loader(ToyDataset()))
    next(batches)
    (child,) = workers_alive()
    subprocess.run(['kill', f'-{int(number)}', str(child)], check=True)  # not from the training
    time.sleep(0.3)
    assert len(list(islice(batches, 10))) == 10
    assert child in workers_alive()


def test_a_worker_ends_when_the_training_tells_it_to():
    batches = iter(loader(ToyDataset()))
    next(batches)
    (child,) = multiprocessing.active_children()
    child.terminate()
    child.join(5)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ('what', 'reason'),
    [('unsendable', 'PicklingError|AttributeError'), ('killed', 'DataLoader worker')],
)
@pytest.mark.parametrize('training', [True, False])
def test_workers_that_fail_end_the_run(training, what, reason):
    match = rf'the processes that load data have failed \(.*({reason}).*num_workers=0'
    with pytest.raises(UserError, match=match):
        next(iter(loader(Failing(what), 2, training)))


def test_workers_that_are_stopped_end_the_run_after_the_timeout():
    message = r'the 2 processes that load data have given no batch for \d+ sec.*num_workers=0'
    with pytest.raises(UserError, match=message):
        next(iter(loader(Failing('stopped'), 2, timeout=2)))
    for child in multiprocessing.active_children():
        child.join(30)
    assert not workers_alive()


@pytest.mark.parametrize('timeout', [0, 900])
def test_slow_workers_are_waited_for(timeout):
    assert next(iter(loader(Failing('slow'), timeout=timeout)))


def test_a_batch_larger_than_shared_memory_ends_the_run():
    """As in a container, whose /dev/shm has 64 MB."""

    def has_small_disk() -> bool:
        """Replace /dev/shm for this process and those that it starts."""
        own = ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0
        mounts = ['--make-rprivate', '/'], ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', '/dev/shm']
        return own and all(
            subprocess.run(['mount', *mount], capture_output=True).returncode == 0
            for mount in mounts
        )

    child = os.fork()
    if not child:
        code = 1
        try:
            multiprocessing.set_start_method('fork', force=True)  # the server has the large disk
            if not has_small_disk():
                code = NO_SMALL_DISK
            else:
                next(iter(loader(Failing('large'), 2)))
        except UserError as error:
            code = 'the processes that load data have failed' not in str(error)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == NO_SMALL_DISK:
        pytest.skip('no disk can be mounted here')
    assert code == 0
