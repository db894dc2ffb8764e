"""Random samples of positive and negative boxes, without waiting for their numbers.

mmdet's RandomSampler permutes the candidates on the CPU, and must know how many there are. Here,
each candidate draws a number on the device, and the smallest ones are sampled: the same
distribution, uniform without replacement, from other random numbers.
"""

from typing import NamedTuple

import torch
from mmdet.models.task_modules.samplers import RandomSampler
from torch import Tensor

from .matching import BACKGROUND


class Sampled(NamedTuple):
    """Some of the boxes of each image: ``index`` (B, K), and which of them are valid (B, K)."""

    index: Tensor
    are_valid: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """Return the values (B, N) or (B, N, D) of the sampled boxes, (B, K) or (B, K, D)."""
        if values.ndim == 2:
            return values.gather(1, self.index)
        return values.gather(1, self.index[..., None].expand(-1, -1, values.shape[2]))


def can_sample(sampler: object) -> bool:
    """Return whether :func:`sample` does what a sampler does."""
    return type(sampler) is RandomSampler


def sample(sampler: RandomSampler, assigned: Tensor) -> tuple[Sampled, Sampled]:
    """Sample positive and negative boxes of each image.

    Args:
        sampler: mmdet's sampler.
        assigned: (B, N), from :func:`.match`.

    Returns:
        At most ``num * pos_fraction`` positive and ``num`` negative boxes, valid ones first.
    """
    num_positive = int(sampler.num * sampler.pos_fraction)
    positive = _draw(assigned > BACKGROUND, num_positive)
    count = positive.are_valid.sum(dim=1, keepdim=True)
    limit = sampler.num - count
    if sampler.neg_pos_ub >= 0:
        limit = limit.minimum((sampler.neg_pos_ub * count.clamp(min=1)).long())
    negative = _draw(assigned == BACKGROUND, sampler.num)
    rank = torch.arange(negative.index.shape[1], device=assigned.device)
    return positive, Sampled(negative.index, negative.are_valid & (rank < limit))


def _draw(candidates: Tensor, number: int) -> Sampled:
    keys = _keys_like(candidates).masked_fill_(~candidates, 2)
    keys, index = keys.topk(min(number, keys.shape[1]), dim=1, largest=False)
    return Sampled(index, keys < 2)


def _keys_like(candidates: Tensor) -> Tensor:
    """Draw a number in [0, 1) for each candidate (B, N)."""
    return torch.rand(candidates.shape, device=candidates.device)
