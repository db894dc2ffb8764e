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
    inner = DataLoader(
        dataset, batch_size=2, sampler=sampler, collate_fn=pseudo_collate, num_workers=workers
    )
    return training_loader(inner, 7, endless)


def values(batch: dict) -> list[list[float]]:
    return [value.tolist() for value in batch['inputs']]


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


def test_a_bad_sample_of_an_evaluation_is_an_error_that_names_it():
    inner = DataLoader(ToyDataset(bad=(2,)), batch_size=1, collate_fn=pseudo_collate)
    drawn = []
    with pytest.raises(UserError, match=r'2\.png: ValueError: planted; metrics without it'):
        drawn += [values(batch) for batch in evaluation_loader(inner)]


def test_a_hook_can_exchange_what_the_dataset_has():
    """As mmdet's PipelineSwitchHook does it with the pipeline."""
    data = loader(ToyDataset())
    data.dataset.bad = (1, 2)
    assert data.dataset.dataset.bad == (1, 2)
