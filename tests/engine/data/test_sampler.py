"""The batches of a training from any iteration on."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from helpers.toy import SIZE, ToyDataset
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler

from xcit_mm import UserError
from xcit_mm.engine.data.sampler import ResumableBatches, seed_all


def batches(sampler=DefaultSampler, endless=True, size=3) -> ResumableBatches:
    inner = BatchSampler(sampler(ToyDataset(), shuffle=True, seed=5), size, drop_last=False)
    return ResumableBatches(inner, 7, endless)


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
@pytest.mark.parametrize('start', [1, 3, 4, 11])
def test_a_resumed_run_loads_the_remaining_batches(sampler, start):
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


def test_every_sample_is_loaded_once_in_an_epoch_and_each_epoch_has_its_order():
    indices = [request.index for batch in islice(batches(), 8) for request in batch]
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
            assert sorted(request.index for batch in part for request in batch) == [*range(SIZE)]


def test_an_infinite_sampler_has_no_epochs():
    with pytest.raises(UserError, match='InfiniteSampler has no epochs; use DefaultSampler'):
        batches(InfiniteSampler, endless=False)


def processes_with(monkeypatch, num_batches: int) -> None:
    """Let another process have so many batches in an epoch, more than this one."""
    place = 'xcit_mm.engine.data.sampler.all_reduce'
    monkeypatch.setattr(place, lambda tensor, operation: tensor.fill_(num_batches))


def test_a_process_without_data_is_an_error(monkeypatch):
    processes_with(monkeypatch, 3)
    empty = BatchSampler([], 2, drop_last=False)
    empty.sampler = []
    with pytest.raises(UserError, match='process 0 has no batch'):
        next(iter(ResumableBatches(empty, 0, False)))


def test_a_smaller_share_is_filled_up(monkeypatch):
    processes_with(monkeypatch, 5)
    requests = list(batches(endless=False))
    assert len(requests) == 5
    assert [r.index for r in requests[4]] == [r.index for r in requests[0]]
    assert requests[4][0].position != requests[0][0].position  # with another augmentation


def test_random_numbers_follow_from_the_position_alone():
    def draw() -> tuple:
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed_all(1, 2, 3)
    first = draw()
    draw()
    seed_all(1, 2, 3)
    assert draw() == first
    for position in ((1, 2), (1, 3, 2), (1, 2, 4)):
        seed_all(*position)
        assert not set(draw()) & set(first)
