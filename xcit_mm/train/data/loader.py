"""Data loaders that report bad samples, and workers that fail."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Sampler

from ...base.errors import UserError, reason
from ...data.datasets.samples import BadSample, Samples, TrainingSamples
from .pinned import pinned
from .sampler import ResumableBatches
from .workers import Batches, init_worker, start_fork_server

# How PyTorch's errors about workers start.
WORKER_ERRORS = ('DataLoader worker', 'Pin memory thread', 'Too many open files')
# Arguments of DataLoader that mmengine's loader passes on to ours.
KEPT_ARGUMENTS = (
    *('num_workers', 'pin_memory', 'multiprocessing_context'),
    *('prefetch_factor', 'persistent_workers', 'timeout'),
)


class CheckedLoader(DataLoader):
    """A loader with the arguments of mmengine's that reports bad samples and failed workers.

    ``on_bad`` is called with the bad ``samples`` of a batch before the batch is used, ``on_wait``
    every second without a batch, with the ``seconds`` since the last one. Both may raise an error.
    """

    def __init__(
        self,
        loader: DataLoader,
        samples: Samples,
        batches: Sampler,
        on_bad: Callable[..., None],
        on_wait: Callable[..., None],
    ) -> None:
        super().__init__(
            samples,
            batch_sampler=batches,
            collate_fn=partial(_collate, loader.collate_fn),
            worker_init_fn=partial(init_worker, loader.worker_init_fn, os.getpid()),
            **{name: getattr(loader, name) for name in KEPT_ARGUMENTS},
        )
        self._on_bad, self._on_wait = on_bad, on_wait
        if self.num_workers > 0:
            start_fork_server(type(samples.dataset).__module__)

    def wait(self, seconds: float) -> None:
        """Refuse to wait longer than ``timeout`` seconds (0: no limit) for a batch."""
        self._on_wait(seconds=seconds)
        if self.timeout and seconds >= self.timeout:
            raise UserError(
                f'the {self.num_workers} processes that load data have sent no batch for '
                f'{seconds:.0f} seconds: check the disk; num_workers=0 of the dataloader loads '
                'without them, timeout=SECONDS waits longer'
            )

    def _get_iterator(self) -> Iterator[Any]:
        return Batches(self) if self.num_workers > 0 else super()._get_iterator()

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing is read before the first batch is requested, from where it is then.
        try:
            for batch, bad in super().__iter__():
                if bad:
                    self._on_bad(samples=bad)
                if batch is None:
                    raise UserError(f'{bad[-1]}, and nothing can take its place')
                yield batch
        except (OSError, RuntimeError) as error:
            is_of_workers = isinstance(error, OSError) or str(error).startswith(WORKER_ERRORS)
            if self.num_workers == 0 or not is_of_workers:
                raise
            raise UserError(
                f'the processes that load data have failed ({reason(error)}): they need memory, '
                'and room in /dev/shm (docker run --shm-size=8g); num_workers=0 of the dataloader '
                'loads without them'
            ) from error


class LoadedBatch(NamedTuple):
    """A batch, or None without a good sample, and the bad samples that it would have had."""

    batch: Any
    bad: list[BadSample]

    def pin_memory(self) -> 'LoadedBatch':
        """Return the batch in pinned memory; PyTorch calls this in a thread."""
        return self._replace(batch=pinned(self.batch))


def training_loader(
    loader: DataLoader,
    seed: int,
    endless: bool,
    on_bad: Callable[..., None],
    on_wait: Callable[..., None],
) -> CheckedLoader:
    """Return a loader whose order can be resumed, in place of mmengine's."""
    batches = ResumableBatches(loader.batch_sampler, seed, endless)
    return CheckedLoader(loader, TrainingSamples(loader.dataset), batches, on_bad, on_wait)


def evaluation_loader(loader: DataLoader, on_wait: Callable[..., None]) -> CheckedLoader:
    """Return a loader whose bad samples are errors, in place of mmengine's."""
    return CheckedLoader(loader, Samples(loader.dataset), loader.batch_sampler, _refuse, on_wait)


def _refuse(samples: list[BadSample]) -> None:
    raise UserError(
        f'{", ".join(map(str, samples))}; metrics without it are not comparable: repair the '
        'file, or remove it from the annotations'
    )


def _collate(
    collate: Callable[[list], Any], samples: list[tuple[Any, list[BadSample]]]
) -> LoadedBatch:
    """Collate the good samples of a batch, and list the bad ones."""
    bad = [problem for _, problems in samples for problem in problems]
    good = [sample for sample, _ in samples if sample is not None]
    return LoadedBatch(collate(good) if len(good) == len(samples) else None, bad)
