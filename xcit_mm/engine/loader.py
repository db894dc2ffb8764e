"""Loaders of data that go on from any iteration, and know what to do with a bad sample."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dist import all_reduce, get_rank
from mmengine.logging import print_log
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from ..datasets.images import BLACK
from ..errors import UserError, reason
from .randomness import seed_all

# Samplers that never end, by name: those of mmdet are there only where it is.
ENDLESS = ('InfiniteSampler', 'MultiSourceSampler', 'GroupMultiSourceSampler')
MAX_TRIES = 10  # samples in a row that cannot be read before a batch is given up
# Of DataLoader, what a loader built by mmengine hands on to ours.
HANDED_ON = (
    'num_workers',
    'pin_memory',
    'timeout',
    'multiprocessing_context',
    'prefetch_factor',
    'persistent_workers',
)


class BadSample(NamedTuple):
    """A sample that cannot be read."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f'{self.file}: {self.reason}'


class Draw(NamedTuple):
    """A sample to load, and the place of it in the run, which its augmentation follows from."""

    index: int
    place: tuple[int, ...]


class ResumableBatches(Sampler):
    """The batches of a training from any iteration on, without reading what lies before it.

    Args:
        batches: The batches of one pass over the data, in an order that follows from
            ``batches.sampler.set_epoch``, or the endless ones of an ``InfiniteSampler``.
        seed: Of the run.
        endless: One pass after the other, for a loop that counts iterations.

    Attributes:
        start: The iteration of the first batch.

    Raises:
        UserError: If an ``InfiniteSampler`` is to give epochs, or a process has no data.
    """

    def __init__(self, batches: BatchSampler, seed: int, endless: bool) -> None:
        self.batches = batches
        self.sampler = batches.sampler  # where mmengine's hooks look for it
        self.batch_size = batches.batch_size
        self.seed = seed
        self.endless = endless
        self.start = 0
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

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, done = (0, self.start) if self._is_infinite else divmod(self.start, self.length)
        rank = get_rank()
        indices = islice(self._from_epoch(epoch), done, None if self.endless else self.length)
        for iteration, batch in enumerate(indices, self.start):
            yield [Draw(index, (self.seed, rank, iteration, k)) for k, index in enumerate(batch)]

    def _from_epoch(self, epoch: int) -> Iterator[Sequence[int]]:
        if self._is_infinite:
            yield from self.batches
        while True:
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            share = list(self.batches)  # to its end, where mmdet's sampler clears what it keeps
            if not share:
                raise UserError(
                    f'train_dataloader: process {get_rank()} has not one batch; there are more '
                    'processes than images, or drop_last drops them'
                )
            yield from islice(cycle(share), self.length)
            epoch += 1


class _Samples(Dataset):
    """A dataset that gives samples together with those that turned out bad.

    It is the dataset of a loader, in the place of mmengine's, whose attributes it has: hooks read
    them, or exchange the pipeline.
    """

    def __init__(self, dataset: Dataset) -> None:
        vars(self)['dataset'] = dataset

    def __getattr__(self, name: str) -> Any:
        # The first is not there yet in a copy that is being made; the other one reads a batch.
        if name in ('dataset', '__getitems__'):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def _read(self, index: int) -> tuple[Any, list[BadSample]]:
        try:
            return self.dataset[index], []
        except Exception as error:  # of decoders, of transforms: whatever it is, it is this sample
            return None, [BadSample(self._file(index), reason(error))]

    def _file(self, index: int) -> str:
        try:
            return self.dataset.get_data_info(index)['img_path']
        except Exception:
            return f'sample {index}'


class TrainingSamples(_Samples):
    """Samples whose augmentation follows from their place; bad ones are replaced by others."""

    def __getitem__(self, draw: Draw) -> tuple[Any, list[BadSample]]:
        seed_all(*draw.place)
        index = draw.index
        bad: list[BadSample] = []
        while len(bad) < MAX_TRIES:
            sample, problem = self._read(index)
            bad += problem
            if sample is not None:
                return sample, bad
            index = np.random.randint(len(self))
        return None, bad


class EvaluationSamples(_Samples):
    """Samples in the order of the dataset; what is bad is an error, or a black image.

    Args:
        dataset: The dataset.
        skip_bad: Evaluate a black image in the place of one that cannot be read. To leave it
            out would put the results of several processes into a wrong order.
    """

    def __init__(self, dataset: Dataset, skip_bad: bool) -> None:
        super().__init__(dataset)
        vars(self)['skip_bad'] = skip_bad

    def __getitem__(self, index: int) -> tuple[Any, list[BadSample]]:
        sample, bad = self._read(index)
        if bad and self.skip_bad:
            sample = self._black(index)
        return sample, bad

    def _black(self, index: int) -> Any:
        try:
            return self.dataset.pipeline({**self.dataset.get_data_info(index), BLACK: True})
        except Exception:  # it is not the image that is bad, or the pipeline loads it otherwise
            return None


class CheckedLoader(DataLoader):
    """Batches of a dataset of samples; ``report`` is told the bad ones among them.

    Attributes:
        report: Called with the bad samples of each batch that has some, in the main process,
            when the batch is asked for. Who knows what to do with them puts their own there.
    """

    def report(self, samples: list[BadSample]) -> None:
        print_log(f'Bad samples: {", ".join(map(str, samples))}', 'current', logging.WARNING)

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is read before the first batch is asked for, from where it is then.
        for batch, bad in super().__iter__():
            if bad:
                self.report(bad)
            if batch is None:
                raise UserError(f'{bad[-1]}, and nothing can take its place')
            yield batch


def training_loader(loader: DataLoader, seed: int, endless: bool) -> CheckedLoader:
    """The loader of a training in the place of one that mmengine built.

    Args:
        loader: It.
        seed: Of the run.
        endless: As of :class:`ResumableBatches`, which is the ``batch_sampler``.
    """
    batches = ResumableBatches(loader.batch_sampler, seed, endless)
    return _checked(loader, TrainingSamples(loader.dataset), batch_sampler=batches)


def evaluation_loader(loader: DataLoader, skip_bad: bool) -> CheckedLoader:
    """The loader of an evaluation in the place of one that mmengine built.

    Args:
        loader: It.
        skip_bad: As of :class:`EvaluationSamples`.
    """
    samples = EvaluationSamples(loader.dataset, skip_bad)
    return _checked(loader, samples, batch_sampler=loader.batch_sampler)


def _checked(loader: DataLoader, samples: _Samples, **kwargs) -> CheckedLoader:
    kwargs |= {name: getattr(loader, name) for name in HANDED_ON}
    kwargs |= {
        'collate_fn': _Collate(loader.collate_fn),
        'worker_init_fn': _WorkerInit(loader.worker_init_fn),
    }
    return CheckedLoader(samples, **kwargs)


class _WorkerInit:
    """Workers outlive a signal to the whole group, so that the step can be finished.

    They end when the process that has started them tells them to, or has ended. PyTorch's own
    see that, too, but wait then for somebody to read the batch that they have ready.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, 'sigtimedwait'):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            Thread(target=_obey, args=(os.getppid(),), daemon=True).start()
        if self.init is not None:
            self.init(worker)


def _obey(parent: int) -> None:
    told = None
    while os.getppid() == parent and (told is None or told.si_pid != parent):
        told = signal.sigtimedwait([signal.SIGTERM], 1)
    os._exit(0)


class _Collate:
    """Apart from the samples of a batch: those that turned out bad on the way to it."""

    def __init__(self, collate: Callable[[list], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[tuple[Any, list[BadSample]]]) -> tuple[Any, list[BadSample]]:
        bad = [problem for _, problems in samples for problem in problems]
        good = [sample for sample, _ in samples if sample is not None]
        return self.collate(good) if len(good) == len(samples) else None, bad
