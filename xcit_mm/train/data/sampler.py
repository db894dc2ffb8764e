"""The order of the training data, which follows from the iteration."""

from collections.abc import Iterator, Sequence, Sized
from itertools import cycle, islice
from typing import Any

import torch
from mmengine.dataset import DefaultSampler
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, Sampler

from ...base.errors import UserError
from ...data.datasets.samples import SampleRequest

# Samplers without an end, by name, because some exist only where mmdet is installed.
ENDLESS = ('InfiniteSampler', 'MultiSourceSampler', 'GroupMultiSourceSampler')


@DATA_SAMPLERS.register_module()
class SharedSampler(DefaultSampler):
    """A ``DefaultSampler`` with the same order in all processes, which share each image.

    It has the arguments of mmengine's sampler.
    """

    def __init__(self, dataset: Sized, *args: Any, **kwargs: Any) -> None:
        super().__init__(dataset, *args, **kwargs)
        self.rank, self.world_size = 0, 1  # the share of a single process
        self.num_samples = self.total_size = len(dataset)


@DATA_SAMPLERS.register_module()
class RepeatedSampler(DefaultSampler):
    """Repeated augmentation: several views of each image, one after the other (arXiv 1901.09335).

    The processes share the views of an image. An epoch has as many samples as with a
    ``DefaultSampler``, so that it holds only a part of the images.

    Args:
        dataset: The dataset.
        repeats: The number of views of an image.
        kwargs: Arguments of mmengine's ``DefaultSampler``.
    """

    def __init__(self, dataset: Sized, repeats: int = 3, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        self.repeats = repeats

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        size = len(self.dataset)
        order = torch.randperm(size, generator=generator) if self.shuffle else torch.arange(size)
        views = order.repeat_interleave(self.repeats)
        views = views.repeat(-(-self.total_size // len(views)))[: self.total_size]
        return iter(views[self.rank :: self.world_size].tolist())


class ResumableBatches(Sampler):
    """The training batches from any iteration on, without reading the data before it.

    ``batches`` are one pass over the data, which is repeated if ``endless``, or have no end, as
    with an ``InfiniteSampler``. ``start`` is the iteration of the first batch, ``rank`` the number
    of the share of the data, and ``images`` the number of images of a step in all shares.
    """

    def __init__(self, batches: BatchSampler, seed: int, endless: bool) -> None:
        self.batches = batches
        self.sampler = batches.sampler  # mmengine's hooks look for it here
        self.batch_size = batches.batch_size
        self.seed = seed
        self.endless = endless
        self.start = 0
        self.rank = getattr(self.sampler, 'rank', get_rank())
        self.images = self.batch_size * getattr(self.sampler, 'world_size', get_world_size())
        self._is_infinite = type(self.sampler).__name__ in ENDLESS
        if self._is_infinite and not endless:
            raise UserError(
                f'train_dataloader.sampler: {type(self.sampler).__name__} has no epochs; use '
                'DefaultSampler, or train_cfg=dict(by_epoch=False, max_iters=...)'
            )
        # Processes with unequal shares would wait for each other at the end of an epoch.
        length = torch.tensor(len(batches))
        all_reduce(length, 'max')
        self.length = int(length)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[SampleRequest]]:
        epoch, done = (0, self.start) if self._is_infinite else divmod(self.start, self.length)
        indices = islice(self._from_epoch(epoch), done, None if self.endless else self.length)
        for iteration, batch in enumerate(indices, self.start):
            positions = ((self.seed, self.rank, iteration, k) for k in range(len(batch)))
            yield list(map(SampleRequest, batch, positions))

    def _from_epoch(self, epoch: int) -> Iterator[Sequence[int]]:
        if self._is_infinite:
            yield from self.batches
        while True:
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            share = list(self.batches)  # read to its end, where mmdet's sampler clears its state
            if not share:
                raise UserError(
                    f'train_dataloader: process {get_rank()} has no batch; use fewer processes '
                    'than images, and drop_last=False'
                )
            yield from islice(cycle(share), self.length)
            epoch += 1
