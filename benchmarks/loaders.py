"""Measurements of the data loader of a training, without a model."""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from xcit_mm.base.environment import quiet
from xcit_mm.base.errors import UserError
from xcit_mm.config.adapt import fit_loaders
from xcit_mm.train.data.loader import training_loader

from .measure import require_sizes
from .step_configs import STOCK, Training, without_workers

TURNS = 4  # times that each prefetched batch is replaced in a measurement


@dataclass(frozen=True)
class LoaderSettings:
    """What to measure, and how.

    Raises:
        ArgumentError: If a value is invalid.
    """

    models: tuple[str, ...]  # see step_configs.NAMES; only their data is loaded
    workers: tuple[int, ...] = (0, 1, 2, 4, 8)
    sizes: tuple[tuple[int, int], ...] = ((800, 1344),)  # of drawn images, multiples of 32
    batch_size: int | None = None  # None: of the config
    repeats: int = 3  # measurements of each number of workers
    steps: int = 20  # batches in a measurement, or more if there are many workers
    options: Mapping[str, Any] | None = None  # replace values of the configs, by dotted names
    device: str = 'cpu'

    def __post_init__(self) -> None:
        require_sizes(self.sizes)
        for name in self.models:
            Training(name, self.sizes[0], self.batch_size, 'float32')


@dataclass(frozen=True)
class LoaderMeasurement:
    """The loader of one training with a number of workers."""

    model: str
    size: tuple[int, int] | None  # (height, width); None: the images of the config's data
    workers: int
    images_per_second: float  # median
    spread: tuple[float, float]  # smallest and largest
    what: str = 'loader'


def measure_loaders(settings: LoaderSettings) -> Iterator[LoaderMeasurement]:
    """Yield a measurement for each number of workers of each loader.

    The numbers of workers alternate, so that a machine that slows down slows all of them.
    """
    trainings = [
        Training(name, size, settings.batch_size, 'float32')
        for size in settings.sizes
        for name in settings.models
    ]
    for training in dict.fromkeys(trainings):
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            cfg, _ = training.config(Path(folder), settings.options)
            fit_loaders(cfg)  # of which only the pinned memory is measured
            rates: dict[int, list[float]] = {workers: [] for workers in settings.workers}
            for _ in range(settings.repeats):
                for workers, measured in rates.items():
                    is_stock = training.name.endswith(STOCK)
                    measured.append(_images_per_second(cfg, is_stock, workers, settings.steps))
        for workers, measured in rates.items():
            spread = min(measured), max(measured)
            median = statistics.median(measured)
            yield LoaderMeasurement(training.name, training.size, workers, median, spread)


def _images_per_second(cfg: Config, is_stock: bool, workers: int, steps: int) -> float:
    init_default_scope(cfg.default_scope)
    set_multi_processing(**cfg.env_cfg.mp_cfg)
    dataloader = without_workers(cfg.train_dataloader)
    if workers:
        dataloader |= dict(num_workers=workers, persistent_workers=True)
    with quiet():  # datasets print
        loader = Runner.build_dataloader(dataloader, seed=0)
    if not is_stock:
        loader = training_loader(loader, 0, endless=True, on_bad=_refuse, on_wait=_go_on)
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    prefetched = workers * (loader.prefetch_factor or 0)
    for _ in islice(batches, prefetched + 1):
        pass
    steps = max(steps, TURNS * prefetched)
    start = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    seconds = time.perf_counter() - start
    if workers:
        loader._iterator._shutdown_workers()  # or they would slow down the next measurement
    return steps * loader.batch_sampler.batch_size / seconds


def _refuse(samples: list) -> None:
    raise UserError(', '.join(map(str, samples)))


def _go_on(**_: Any) -> None:
    """Wait for the workers."""
