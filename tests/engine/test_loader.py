"""Batches from any iteration on, samples that follow from their place, and bad ones."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from helpers import PATIENCE
from helpers.toy import SIZE, ToyDataset
from mmengine.dataset import DefaultSampler, InfiniteSampler, pseudo_collate
from torch.utils.data import BatchSampler, DataLoader

from xcit_mm import UserError
from xcit_mm.engine.data.loader import CheckedLoader, evaluation_loader, training_loader
from xcit_mm.engine.data.sampler import ResumableBatches
from xcit_mm.engine.data.workers import worker_errors
from xcit_mm.engine.runner import CheckedRunner

NEW_MOUNTS = 0x00020000  # unshare's CLONE_NEWNS
NO_SMALL_DISK = 77  # an exit code


def batches(sampler=DefaultSampler, endless=True, size=3) -> ResumableBatches:
    inner = BatchSampler(sampler(ToyDataset(), shuffle=True, seed=5), size, drop_last=False)
    return ResumableBatches(inner, 7, endless)


def loader(dataset: ToyDataset, workers: int = 0, endless: bool = True) -> DataLoader:
    sampler = DefaultSampler(dataset, shuffle=True, seed=5)
    inner = DataLoader(
        dataset, batch_size=2, sampler=sampler, collate_fn=pseudo_collate, num_workers=workers
    )
    return training_loader(inner, 7, endless)


def values(batch: dict) -> list[list[float]]:
    return [value.tolist() for value in batch['inputs']]


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('start', [1, 3, 4, 11])
def test_what_is_resumed_is_the_rest_of_what_was_begun(sampler, start):
    whole = list(islice(batches(sampler), start + 6))
    rest = batches(sampler)
    rest.start = start
    assert list(islice(rest, 6)) == whole[start:]


@pytest.mark.parametrize('start', [0, 1, 4, 7])
def test_an_epoch_ends_with_its_last_batch(start):
    whole = list(islice(batches(), 8))
    rest = batches(endless=False)
    assert len(rest) == 4
    rest.start = start
    assert list(rest) == whole[start : 4 if start < 4 else 8]


def test_every_sample_comes_once_in_an_epoch_and_each_epoch_has_its_order():
    indices = [draw.index for batch in islice(batches(), 8) for draw in batch]
    first, second = indices[:SIZE], indices[SIZE:]
    assert sorted(first) == sorted(second) == list(range(SIZE))
    assert first != second


@pytest.mark.parametrize('drop_last', [False, True])
@pytest.mark.parametrize('size', [1, 2, 3])
def test_mmdets_batches_of_one_aspect_ratio_are_resumed(size, drop_last):
    """Its sampler keeps images for later, and clears them only where it is read to its end."""
    from mmdet.datasets.samplers import AspectRatioBatchSampler

    def begin() -> ResumableBatches:
        sampler = DefaultSampler(ToyDataset(), shuffle=True, seed=5)
        inner = AspectRatioBatchSampler(sampler, size, drop_last)
        return ResumableBatches(inner, 7, endless=True)

    whole = list(islice(begin(), 4 * len(begin())))
    for start in range(1, len(whole)):
        rest = begin()
        rest.start = start
        assert list(islice(rest, len(whole) - start)) == whole[start:]
    if not drop_last:
        for epoch in range(4):
            part = whole[epoch * len(begin()) : (epoch + 1) * len(begin())]
            assert sorted(draw.index for batch in part for draw in batch) == list(range(SIZE))


def test_an_infinite_sampler_has_no_epochs():
    with pytest.raises(UserError, match='InfiniteSampler has no epochs; use DefaultSampler'):
        batches(InfiniteSampler, endless=False)


def test_a_process_without_data_is_an_error(monkeypatch):
    empty = BatchSampler([], 2, drop_last=False)
    empty.sampler = []
    monkeypatch.setattr(
        'xcit_mm.engine.data.sampler.all_reduce', lambda tensor, op: tensor.fill_(3)
    )
    with pytest.raises(UserError, match='process 0 has not one batch'):
        next(iter(ResumableBatches(empty, 0, False)))


def test_a_smaller_share_is_filled_up(monkeypatch):
    """Another process has five batches in an epoch, this one has four."""
    monkeypatch.setattr(
        'xcit_mm.engine.data.sampler.all_reduce', lambda tensor, op: tensor.fill_(5)
    )
    drawn = list(batches(endless=False))
    assert len(drawn) == 5
    assert [d.index for d in drawn[4]] == [d.index for d in drawn[0]]
    assert drawn[4][0].place != drawn[0][0].place  # with another augmentation


def test_samples_do_not_depend_on_workers_or_on_where_the_run_began():
    alone = [values(batch) for batch in islice(loader(ToyDataset()), 7)]
    workers = [values(batch) for batch in islice(loader(ToyDataset(), workers=2), 7)]
    later = loader(ToyDataset(), workers=1)
    later.batch_sampler.start = 4
    torch.rand(3)  # what was drawn before has no part in it
    assert workers == alone
    assert [values(batch) for batch in islice(later, 3)] == alone[4:]
    noise = [value % 1 for batch in alone for pair in batch for value in pair]
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize('workers', [0, 1])
def test_bad_samples_are_replaced_and_reported(workers):
    bad = loader(ToyDataset(bad=(2, 5)), workers, endless=False)
    reported = []
    bad.report = reported.extend
    drawn = [int(value[0]) for batch in bad for value in batch['inputs']]
    assert len(drawn) == SIZE
    assert not {2, 5} & set(drawn)
    assert {str(sample) for sample in reported} == {
        '2.png: ValueError: planted',
        '5.png: ValueError: planted',
    }


def test_a_batch_that_cannot_be_filled_ends_the_run():
    bad = loader(ToyDataset(bad=tuple(range(SIZE))))
    bad.report = lambda samples: None
    with pytest.raises(
        UserError, match=r'\d\.png: ValueError: planted, and nothing can take its place'
    ):
        next(iter(bad))


def test_an_evaluation_reports_a_bad_sample_instead_of_replacing_it():
    inner = DataLoader(ToyDataset(bad=(2,)), batch_size=1, collate_fn=pseudo_collate)
    evaluated = evaluation_loader(inner)
    reported = []
    evaluated.report = reported.extend
    drawn = []
    with pytest.raises(UserError):  # the batch is empty; the runner's report says more, earlier
        drawn += [values(batch) for batch in evaluated]
    assert [sample.file for sample in reported] == ['2.png']


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_the_whole_group(number):
    data = loader(ToyDataset(), workers=1)
    batches = iter(data)
    next(batches)
    (child,) = workers_alive()
    subprocess.run(['kill', f'-{int(number)}', str(child)], check=True)  # not from its parent
    time.sleep(0.3)
    assert len([next(batches) for _ in range(10)]) == 10
    assert child in workers_alive()


def test_a_hook_can_exchange_what_the_dataset_has():
    """As mmdet's PipelineSwitchHook does it with the pipeline."""
    data = loader(ToyDataset())
    data.dataset.bad = (1, 2)
    assert data.dataset.dataset.bad == (1, 2)


def test_workers_end_when_their_parent_says_so():
    batches = iter(loader(ToyDataset(), workers=1))
    next(batches)
    (child,) = multiprocessing.active_children()
    child.terminate()
    child.join(5)
    assert child.exitcode == 0


class Failing(ToyDataset):
    """One that calls a function before it gives a sample, in the worker."""

    def __init__(self, call: Callable[[dict], object]) -> None:
        super().__init__()
        self.call = call

    def __getitem__(self, index: int) -> dict:
        sample = super().__getitem__(index)
        self.call(sample)
        return sample


@pytest.mark.parametrize(
    ('call', 'reason'),
    [
        (lambda sample: sample.update(more=lambda: 0), 'PicklingError|AttributeError'),
        (lambda sample: os.kill(os.getpid(), signal.SIGKILL), 'DataLoader worker'),
    ],
    ids=['a batch that cannot be sent', 'a worker that is killed'],
)
@pytest.mark.parametrize('load', [training_loader, evaluation_loader])
def test_workers_that_fail_end_the_run(load, call, reason):
    match = rf'the processes that load data have failed \(.*({reason}).*num_workers=0'
    data = loaded_by(load, Failing(call))
    with pytest.raises(UserError, match=match), worker_errors():
        next(iter(data))


def loaded_by(load: Callable, dataset: ToyDataset, **kwargs) -> CheckedLoader:
    sampler = DefaultSampler(dataset, shuffle=True, seed=5)
    inner = DataLoader(dataset, sampler=sampler, collate_fn=pseudo_collate, num_workers=2, **kwargs)
    return load(inner, 7, True) if load is training_loader else load(inner)


def test_a_batch_larger_than_shared_memory_ends_the_run():
    """As in a container, whose /dev/shm has 64 MB."""

    def fill(sample: dict) -> None:
        sample['inputs'] = torch.ones(2**22)

    def small_disk() -> bool:
        """Whether /dev/shm could be exchanged for this process and those that it starts."""
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
            if not small_disk():
                code = NO_SMALL_DISK
            else:
                with worker_errors():
                    next(iter(loaded_by(training_loader, Failing(fill))))
        except UserError as error:
            code = 'the processes that load data have failed' not in str(error)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == NO_SMALL_DISK:
        pytest.skip('no disk can be mounted here')
    assert code == 0


def test_no_workers_is_one_value_to_change():
    """The configs keep theirs, and PyTorch refuses to keep none."""
    data = dict(batch_size=1, num_workers=0, persistent_workers=True, timeout=9)
    data |= dict(dataset=dict(type='ToyDataset'), sampler=dict(type='DefaultSampler'))
    assert CheckedRunner.build_dataloader(data).num_workers == 0


@pytest.mark.parametrize(
    'stop',
    [lambda: os.kill(os.getpid(), signal.SIGSTOP), lambda: time.sleep(10**6)],
    ids=['stopped', 'asleep'],
)
def test_workers_that_stand_still_end_the_run(stop, monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.data.loader.MAX_IDLE', 2)
    data = loaded_by(evaluation_loader, Failing(lambda sample: stop()))
    message = r'the 2 processes that load data have done nothing for \d+ seconds.*num_workers=0'
    with pytest.raises(UserError, match=message):
        next(iter(data))
    assert not workers_alive()


def test_workers_that_are_slow_are_waited_for(monkeypatch):
    """However little of a loaded machine they get: they compute, or are ready to."""
    monkeypatch.setattr('xcit_mm.engine.data.loader.MAX_IDLE', 2)

    def compute(sample: dict) -> None:
        end = time.process_time() + 4
        while time.process_time() < end:
            pass

    assert next(iter(loaded_by(evaluation_loader, Failing(compute))))


def test_a_limit_of_the_user_is_the_only_one(monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.data.loader.MAX_IDLE', 1)
    data = loaded_by(evaluation_loader, Failing(lambda sample: time.sleep(3)), timeout=PATIENCE)
    assert next(iter(data))


def workers_alive() -> list[int]:
    return [child.pid for child in multiprocessing.active_children()]
