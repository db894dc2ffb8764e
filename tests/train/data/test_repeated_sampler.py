"""Repeated augmentation: several views of an image in a step, in all processes."""

from collections import Counter
from itertools import islice

import pytest
from helpers.toy import SIZE, ToyDataset
from torch.utils.data import BatchSampler

from xcit_mm.train.data.sampler import RepeatedSampler, ResumableBatches


def sampler(rank=0, world_size=1, **kwargs):
    made = RepeatedSampler(ToyDataset(), shuffle=True, seed=5, **kwargs)
    made.rank, made.world_size = rank, world_size
    made.num_samples = -(-SIZE // world_size)
    made.total_size = made.num_samples * world_size
    return made


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_the_processes_share_the_views_of_an_image(world_size):
    shares = [list(sampler(rank, world_size)) for rank in range(world_size)]
    assert {len(share) for share in shares} == {-(-SIZE // world_size)}
    order = [index for step in zip(*shares, strict=True) for index in step]
    groups = [set(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(len(group) == 1 for group in groups)
    assert max(Counter(order).values()) == 3


def test_a_resumed_run_loads_the_remaining_views():
    def batches(start=0):
        resumable = ResumableBatches(BatchSampler(sampler(), 3, drop_last=False), 7, True)
        resumable.start = start
        return resumable

    length = len(batches())
    whole = list(islice(batches(), 3 * length))
    for start in range(1, len(whole)):
        assert list(islice(batches(start), len(whole) - start)) == whole[start:]
    # Equal images at unequal positions, from which their augmentations follow.
    assert len({request.index for request in whole[0]}) == 1
    assert len({request.position for request in whole[0]}) == 3
    assert whole[0][0].index != whole[length][0].index
