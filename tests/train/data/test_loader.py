"""Batches and samples that follow from their position in a run, and bad samples."""

from itertools import islice

import pytest
import torch
from helpers.toy import SIZE, ToyDataset, toy_loader
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler

from xcit_mm import UserError
from xcit_mm.train.data.sampler import ResumableBatches


def batches(
    sampler=DefaultSampler, endless=True, start=0, kind=BatchSampler, size=3, drop_last=False
):
    inner = kind(sampler(ToyDataset(), shuffle=True, seed=5), size, drop_last=drop_last)
    resumable = ResumableBatches(inner, 7, endless)
    resumable.start = start
    return resumable


@pytest.mark.parametrize('drop_last', [False, True])
@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('of_mmdet', [False, True])
def test_a_resumed_run_loads_the_remaining_batches(of_mmdet, size, drop_last):
    """mmdet's batches keep images for later, and clear them only at the end of an epoch."""
    from mmdet.datasets.samplers import AspectRatioBatchSampler

    kind = AspectRatioBatchSampler if of_mmdet else BatchSampler
    options = dict(kind=kind, size=size, drop_last=drop_last)
    length = len(batches(**options))
    whole = list(islice(batches(**options), 4 * length))
    for start in range(1, len(whole)):
        assert list(islice(batches(start=start, **options), len(whole) - start)) == whole[start:]
    if not drop_last:
        epochs = [whole[i : i + length] for i in range(0, len(whole), length)]
        orders = [[request.index for batch in epoch for request in batch] for epoch in epochs]
        assert all(sorted(order) == [*range(SIZE)] for order in orders)
        assert orders[0] != orders[1]


def test_an_infinite_sampler_is_resumed_and_has_no_epochs():
    whole = list(islice(batches(InfiniteSampler), 17))
    for start in (1, 4, 11):
        assert list(islice(batches(InfiniteSampler, start=start), 6)) == whole[start : start + 6]
    with pytest.raises(UserError, match='InfiniteSampler has no epochs; use DefaultSampler'):
        batches(InfiniteSampler, endless=False)


@pytest.mark.parametrize('start', [0, 1, 4, 7])
def test_an_epoch_ends_with_its_last_batch(start):
    whole = list(islice(batches(), 8))
    rest = batches(endless=False, start=start)
    assert len(rest) == 4
    assert list(rest) == whole[start : 4 if start < 4 else 8]


def test_a_smaller_share_is_filled_up_and_an_empty_one_refused(monkeypatch):
    """Another process has five batches in an epoch."""
    place = 'xcit_mm.train.data.sampler.all_reduce'
    monkeypatch.setattr(place, lambda tensor, operation: tensor.fill_(5))
    requests = list(batches(endless=False))
    assert len(requests) == 5
    assert [r.index for r in requests[4]] == [r.index for r in requests[0]]
    assert requests[4][0].position != requests[0][0].position  # with another augmentation
    empty = BatchSampler([], 2, drop_last=False)
    with pytest.raises(UserError, match='process 0 has no batch'):
        next(iter(ResumableBatches(empty, 0, False)))


def values(batch: dict) -> list[list[float]]:
    return [value.tolist() for value in batch['inputs']]


def test_samples_do_not_depend_on_workers_or_on_where_the_run_began():
    alone = [values(batch) for batch in islice(toy_loader(ToyDataset()), 7)]
    workers = [values(batch) for batch in islice(toy_loader(ToyDataset(), workers=2), 7)]
    later = toy_loader(ToyDataset(), workers=1)
    later.batch_sampler.start = 4
    torch.rand(3)  # random numbers drawn before do not matter
    assert workers == alone
    assert [values(batch) for batch in islice(later, 3)] == alone[4:]
    noise = [value % 1 for batch in alone for pair in batch for value in pair]
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize('workers', [0, 1])
def test_bad_samples_are_replaced_and_reported(workers):
    reported = []
    bad = toy_loader(
        ToyDataset(), workers, endless=False, on_bad=lambda samples: reported.extend(samples)
    )
    bad.dataset.bad = (2, 5)  # as mmdet's PipelineSwitchHook sets the pipeline
    loaded = [int(value[0]) for batch in bad for value in batch['inputs']]
    assert len(loaded) == SIZE
    assert not {2, 5} & set(loaded)
    assert set(map(str, reported)) == {'2.png: ValueError: planted', '5.png: ValueError: planted'}


def test_a_batch_that_cannot_be_filled_ends_the_run():
    message = r'\d\.png: ValueError: planted, and nothing can take its place'
    with pytest.raises(UserError, match=message):
        next(iter(toy_loader(ToyDataset(bad=tuple(range(SIZE))))))


def test_a_bad_sample_of_an_evaluation_is_an_error_with_its_name():
    loaded = iter(toy_loader(ToyDataset(bad=(2,)), is_training=False, batch_size=1))
    assert len(list(islice(loaded, 2))) == 2
    with pytest.raises(UserError, match=r'2\.png: ValueError: planted; metrics without it'):
        next(loaded)
