"""Data loaders that name a bad sample, and replace it in a training."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from mmengine.logging import print_log
from torch.utils.data import DataLoader, Dataset, Sampler

from ...errors import UserError, reason
from .sampler import Draw, ResumableBatches
from .seeding import seed_all
from .workers import Batches, Unsent, WorkerInit, is_of_workers, start_fork_server, worker_error

MAX_TRIES = 10  # unreadable samples in a row after which a batch is given up
# Arguments of DataLoader that mmengine's loader passes on to ours.
KEPT_ARGUMENTS = (
    'num_workers',
    'pin_memory',
    'multiprocessing_context',
    'prefetch_factor',
    'persistent_workers',
    'timeout',
)


class BadSample(NamedTuple):
    """A sample that cannot be read."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f'{self.file}: {self.reason}'


class _Samples(Dataset):
    """A dataset that gives each sample with the bad ones met on the way to it.

    Hooks read and set attributes of the dataset of a loader, such as its pipeline: those of the
    wrapped dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        vars(self)['dataset'] = dataset

    def __getattr__(self, name: str) -> Any:
        # 'dataset' is missing while a copy is made; PyTorch would read a batch by __getitems__.
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
        except Exception as error:  # decoders and transforms may raise anything
            return None, [BadSample(self._file(index), reason(error))]

    def _file(self, index: int) -> str:
        try:
            return self.dataset.get_data_info(index)['img_path']
        except Exception:
            return f'sample {index}'


class TrainingSamples(_Samples):
    """Samples whose augmentation follows from their place; another replaces a bad one."""

    def __getitem__(self, draw: Draw) -> tuple[Any, list[BadSample]]:
        seed_all(*draw.position)
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
    """Samples in the order of the dataset. A bad one is an error."""

    def __getitem__(self, index: int) -> tuple[Any, list[BadSample]]:
        return self._read(index)


class CheckedLoader(DataLoader):
    """Batches of a dataset of samples, which passes the bad samples among them to ``report``.

    Attributes:
        report: Called in the main process with the bad samples of each batch that has some, when
            the batch is asked for. It raises an error, in a training it logs them.
        on_wait: Called every second that the main process waits for the workers, with the number
            of seconds. A hook may replace it, and may raise an error in it.

    Raises:
        UserError: If the workers cannot be started, fail, or give no batch for ``timeout`` seconds
            (0: no limit).
    """

    def __init__(self, samples: _Samples, *args, **kwargs) -> None:
        super().__init__(samples, *args, **kwargs)
        if self.num_workers > 0:
            start_fork_server(type(samples.dataset).__module__)

    def report(self, samples: list[BadSample]) -> None:
        raise UserError(
            f'{", ".join(map(str, samples))}; metrics without it could not be compared: repair the '
            'file, or remove it from the annotations'
        )

    def on_wait(self, seconds: float) -> None:
        pass

    def wait(self, seconds: float) -> None:
        """Called every second without a batch, with the seconds since the last batch."""
        self.on_wait(seconds)
        if self.timeout and seconds >= self.timeout:
            raise UserError(
                f'the {self.num_workers} processes that load data have given no batch for '
                f'{seconds:.0f} seconds: is the disk there? num_workers=0 of the dataloader loads '
                'without them, timeout=SECONDS waits longer'
            )

    def _get_iterator(self) -> Iterator[Any]:
        return Batches(self) if self.num_workers > 0 else super()._get_iterator()

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is read before the first batch is asked for, from where it is then.
        try:
            for item in super().__iter__():
                if isinstance(item, Unsent):
                    raise worker_error(item.reason)
                batch, bad = item
                if bad:
                    self.report(bad)
                if batch is None:
                    raise UserError(f'{bad[-1]}, and nothing can take its place')
                yield batch
        except (OSError, RuntimeError) as error:
            if self.num_workers == 0 or not is_of_workers(error):
                raise
            raise worker_error(reason(error)) from error


def training_loader(loader: CheckedLoader, seed: int, endless: bool) -> CheckedLoader:
    """Turn the loader that the runner built into a training's, whose order can be resumed.

    See :class:`ResumableBatches` for ``endless``.
    """
    batches = ResumableBatches(loader.batch_sampler, seed, endless)
    samples = TrainingSamples(loader.dataset.dataset)
    built = _with_samples(loader, samples, batches, loader.collate_fn, loader.worker_init_fn)
    built.report = _log  # BadDataHook replaces it
    return built


def evaluation_loader(loader: DataLoader) -> CheckedLoader:
    """Return a loader whose bad samples are errors, in place of mmengine's."""
    samples = EvaluationSamples(loader.dataset)
    collate, init = _Collate(loader.collate_fn), WorkerInit(loader.worker_init_fn)
    return _with_samples(loader, samples, loader.batch_sampler, collate, init)


def _with_samples(
    loader: DataLoader,
    samples: _Samples,
    batches: Sampler,
    collate: Callable[[list], Any],
    init: Callable[[int], None],
) -> CheckedLoader:
    return CheckedLoader(
        samples,
        batch_sampler=batches,
        collate_fn=collate,
        worker_init_fn=init,
        **{name: getattr(loader, name) for name in KEPT_ARGUMENTS},
    )


def _log(samples: list[BadSample]) -> None:
    print_log(f'Replaced: {", ".join(map(str, samples))}', 'current', logging.WARNING)


class _Collate:
    """Collate the good samples of a batch, and list the bad ones beside it."""

    def __init__(self, collate: Callable[[list], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[tuple[Any, list[BadSample]]]) -> tuple[Any, list[BadSample]]:
        bad = [problem for _, problems in samples for problem in problems]
        good = [sample for sample, _ in samples if sample is not None]
        return self.collate(good) if len(good) == len(samples) else None, bad
