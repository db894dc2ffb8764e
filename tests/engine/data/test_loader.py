"""Samples that follow from their position, and bad ones."""

from itertools import islice

import pytest
import torch
from helpers.toy import SIZE, ToyDataset
from mmengine.dataset import DefaultSampler, pseudo_collate
from torch.utils.data import DataLoader

from xcit_mm import UserError
from xcit_mm.engine.data.loader import CheckedLoader, evaluation_loader, training_loader


def loader(dataset: ToyDataset, workers: int = 0, endless: bool = True) -> CheckedLoader:
    sampler = DefaultSampler(dataset, shuffle=True, seed=5)
    options = dict(sampler=sampler, collate_fn=pseudo_collate, num_workers=workers)
    return training_loader(DataLoader(dataset, batch_size=2, **options), 7, endless)


def values(batch: dict) -> list[list[float]]:
    return [value.tolist() for value in batch['inputs']]


def test_samples_do_not_depend_on_workers_or_on_where_the_run_began():
    alone = [values(batch) for batch in islice(loader(ToyDataset()), 7)]
    workers = [values(batch) for batch in islice(loader(ToyDataset(), workers=2), 7)]
    later = loader(ToyDataset(), workers=1)
    later.batch_sampler.start = 4
    torch.rand(3)  # random numbers drawn before do not matter
    assert workers == alone
    assert [values(batch) for batch in islice(later, 3)] == alone[4:]
    noise = [value % 1 for batch in alone for pair in batch for value in pair]
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize('workers', [0, 1])
def test_bad_samples_are_replaced_and_reported(workers):
    bad = loader(ToyDataset(bad=(2, 5)), workers, endless=False)
    reported = []
    bad.report = reported.extend
    loaded = [int(value[0]) for batch in bad for value in batch['inputs']]
    assert len(loaded) == SIZE
    assert not {2, 5} & set(loaded)
    assert set(map(str, reported)) == {'2.png: ValueError: planted', '5.png: ValueError: planted'}


def test_a_batch_that_cannot_be_filled_ends_the_run():
    bad = loader(ToyDataset(bad=tuple(range(SIZE))))
    bad.report = lambda samples: None
    message = r'\d\.png: ValueError: planted, and nothing can take its place'
    with pytest.raises(UserError, match=message):
        next(iter(bad))


def test_a_bad_sample_of_an_evaluation_is_an_error_with_its_name():
    inner = DataLoader(ToyDataset(bad=(2,)), batch_size=1, collate_fn=pseudo_collate)
    batches = iter(evaluation_loader(inner))
    assert len(list(islice(batches, 2))) == 2
    with pytest.raises(UserError, match=r'2\.png: ValueError: planted; metrics without it'):
        next(batches)


def test_a_hook_can_replace_an_attribute_of_the_dataset():
    """As mmdet's PipelineSwitchHook does it with the pipeline."""
    data = loader(ToyDataset())
    data.dataset.bad = (1, 2)
    assert data.dataset.dataset.bad == (1, 2)
