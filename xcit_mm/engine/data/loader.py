"""Loaders that know what to do with a bad sample."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from mmengine.logging import print_log
from torch.utils.data import DataLoader, Dataset

from ...errors import UserError, reason
from .sampler import Draw, ResumableBatches
from .seeding import seed_all
from .workers import MAX_IDLE, MAX_WAIT, Batches, Unsent, WorkerInit, failed

MAX_TRIES = 10  # samples in a row that cannot be read before a batch is given up
# Of DataLoader, what a loader built by mmengine hands on to ours.
HANDED_ON = (
    'num_workers',
    'pin_memory',
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
    """Samples in the order of the dataset."""

    def __getitem__(self, index: int) -> tuple[Any, list[BadSample]]:
        return self._read(index)


class CheckedLoader(DataLoader):
    """Batches of a dataset of samples; ``report`` is told the bad ones among them.

    Args:
        max_wait: Seconds that may pass without a batch of the workers.
        max_idle: Seconds that may pass in which all of them sleep instead.

    Attributes:
        report: Called with the bad samples of each batch that has some, in the main process,
            when the batch is asked for. Who knows what to do with them puts their own there.
        on_wait: Called every second that the main process waits for the workers, with their
            number, likewise. It may raise an error.

    Raises:
        UserError: If the workers cannot be started or give no batch.
    """

    def __init__(self, *args, max_wait: float, max_idle: float, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.max_wait = max_wait
        self.max_idle = max_idle

    def report(self, samples: list[BadSample]) -> None:
        print_log(f'Bad samples: {", ".join(map(str, samples))}', 'current', logging.WARNING)

    def on_wait(self, seconds: float) -> None:
        pass

    def wait(self, seconds: float, idle: float) -> None:
        """Called every second without a batch.

        Args:
            seconds: Since the last batch.
            idle: Since a worker was last seen to compute, or to wait for a disk.
        """
        self.on_wait(seconds)
        if seconds >= self.max_wait or idle >= self.max_idle:
            what = 'done nothing' if idle >= self.max_idle else 'given no data'
            raise UserError(
                f'the {self.num_workers} processes that load data have {what} for {seconds:.0f} '
                'seconds: is the disk there? num_workers=0 of the dataloader loads without them, '
                'timeout=SECONDS waits longer'
            )

    def _get_iterator(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return super()._get_iterator()
        try:
            return Batches(self)
        except OSError as error:
            raise failed(reason(error)) from error

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is read before the first batch is asked for, from where it is then.
        for item in super().__iter__():
            if isinstance(item, Unsent):
                raise failed(item.reason)
            batch, bad = item
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


def evaluation_loader(loader: DataLoader) -> CheckedLoader:
    """The loader of an evaluation in the place of one that mmengine built.

    Args:
        loader: It.
    """
    samples = EvaluationSamples(loader.dataset)
    return _checked(loader, samples, batch_sampler=loader.batch_sampler)


def _checked(loader: DataLoader, samples: _Samples, **kwargs) -> CheckedLoader:
    kwargs |= {name: getattr(loader, name) for name in HANDED_ON}
    kwargs |= {
        'collate_fn': _Collate(loader.collate_fn),
        'worker_init_fn': WorkerInit(loader.worker_init_fn),
        'max_wait': loader.timeout or MAX_WAIT,
        'max_idle': loader.timeout or MAX_IDLE,
    }
    return CheckedLoader(samples, **kwargs)


class _Collate:
    """Apart from the samples of a batch: those that turned out bad on the way to it."""

    def __init__(self, collate: Callable[[list], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[tuple[Any, list[BadSample]]]) -> tuple[Any, list[BadSample]]:
        bad = [problem for _, problems in samples for problem in problems]
        good = [sample for sample, _ in samples if sample is not None]
        return self.collate(good) if len(good) == len(samples) else None, bad
