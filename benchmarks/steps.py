"""Measurements of whole training steps, as the runner takes them, and what the GPU waits for."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from mmengine.registry import RUNNERS
from torch.profiler import ProfilerActivity, profile

from xcit_mm.base.device import choose_device
from xcit_mm.base.errors import ArgumentError
from xcit_mm.config.build_model import config_errors
from xcit_mm.network.waits import counted
from xcit_mm.train.runner import build_runner

from .measure import peak_bytes, require_sizes, synchronize, unless_full
from .step_configs import Training
from .training_steps import PARTS, TrainingSteps

PROFILED = 3  # steps
COPIES = ('Memcpy', 'Memset')  # how the names of GPU events start that are not kernels


@dataclass(frozen=True)
class StepSettings:
    """What to measure, and how.

    Raises:
        ArgumentError: If a value is invalid.
    """

    models: tuple[str, ...]  # see step_configs.NAMES; the suffix +stock: as mmdet and mmseg train
    sizes: tuple[tuple[int, int], ...] = ((800, 1344),)  # of drawn images, multiples of 32
    batch_size: int | None = None  # None: of the config
    dtypes: tuple[str, ...] = ('float32',)  # of autocast
    repeats: int = 5  # measurements of each training after the warm-up
    steps: int = 10  # in a measurement
    threads: int | None = None  # of the CPU; None: PyTorch's default
    options: Mapping[str, Any] | None = None  # replace values of the configs, by dotted names

    def __post_init__(self) -> None:
        require_sizes(self.sizes)
        if self.device == 'cpu' and self.dtypes != ('float32',):
            raise ArgumentError(
                f'--dtypes {" ".join(self.dtypes)}: on a CPU, training steps are measured in '
                'float32 only, because mmdet has no other training there; leave --dtypes out'
            )
        for name in self.models:
            Training(name, self.sizes[0], self.batch_size, self.dtypes[0])

    @property
    def device(self) -> str:
        """The device that a training takes."""
        return choose_device(None).type


@dataclass(frozen=True)
class StepMeasurement:
    """The steps of one training."""

    model: str
    size: tuple[int, int] | None  # (height, width); None: the images of the config's data
    dtype: str
    batch_size: int
    what: str = 'step'
    seconds: float | None = None  # median of a step; None: it did not fit into the memory
    spread: tuple[float, float] | None = None  # shortest and longest mean of a measurement
    host: dict[str, float] | None = None  # seconds of the host in a step, by part
    operators: int | None = None  # started in a step, without views
    waits: int | None = None  # operators in a step that wait for the device
    peak_bytes: int | None = None  # beyond the weights and the state of the optimizer
    kernels: int | None = None  # started in a step; None: no GPU was measured
    gpu_seconds: float | None = None  # in which the GPU works in a step

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.seconds


def measure_steps(settings: StepSettings) -> Iterator[StepMeasurement]:
    """Yield a measurement for each training, those on drawn images one size after the other.

    The trainings at a size alternate, so that a machine that slows down slows all of them.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    trainings = [
        Training(name, size, settings.batch_size, dtype)
        for size, name, dtype in product(settings.sizes, settings.models, settings.dtypes)
    ]
    own_size = [training for training in trainings if training.size is None]
    for size in settings.sizes:
        yield from _measure_together(settings, [t for t in trainings if t.size == size])
    yield from _measure_together(settings, list(dict.fromkeys(own_size)))


class _Turn(NamedTuple):
    seconds: float  # of a step
    host: Counter[str]  # seconds of all steps, by part


def _measure_together(
    settings: StepSettings, trainings: list[Training]
) -> Iterator[StepMeasurement]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        runs = {t: unless_full(_started, t, folder, settings) for t in trainings}
        for steps in filter(None, runs.values()):
            stack.callback(steps.close)
        turns: dict[Training, list[_Turn | None]] = {training: [] for training in runs}
        for _ in range(settings.repeats):
            for training, steps in runs.items():
                turn = steps and unless_full(_turn, steps, settings.steps, settings.device)
                turns[training].append(turn)
        for training, steps in runs.items():
            cell = partial(StepMeasurement, training.name, training.size, training.dtype)
            if None in turns[training]:
                yield cell(training.batch_size or 0)
                continue
            yield cell(**_results(settings, steps, turns[training]))


def _started(training: Training, folder: Path, settings: StepSettings) -> TrainingSteps:
    """Build a runner and take its first step, in which memory is reserved."""
    cfg, notes = training.config(folder, settings.options)
    torch.manual_seed(0)
    with config_errors(cfg):
        if cfg.runner_type == 'Runner':
            steps = TrainingSteps(RUNNERS.build(cfg))
        else:
            steps = TrainingSteps(build_runner(cfg, notes, 'train'))
        steps.step()
    synchronize(settings.device)
    return steps


def _turn(steps: TrainingSteps, number: int, device: str) -> _Turn:
    """Take steps with batches that are loaded meanwhile, not while other trainings run."""
    steps.drop_prefetched()
    steps.step()
    synchronize(device)
    start, host = time.perf_counter(), Counter()
    for _ in range(number):
        host.update(steps.step())
    synchronize(device)
    return _Turn((time.perf_counter() - start) / number, host)


def _results(settings: StepSettings, steps: TrainingSteps, turns: list[_Turn]) -> dict[str, Any]:
    device, seconds = settings.device, sorted(turn.seconds for turn in turns)
    host = sum((turn.host for turn in turns), Counter())
    number = settings.steps * settings.repeats
    with counted(on_gpu=device == 'cuda') as operations:
        steps.step()
    kernels, gpu_seconds = _on_gpu(steps) if device == 'cuda' else (None, None)
    return dict(
        batch_size=steps.images,
        seconds=statistics.median(seconds),
        spread=(seconds[0], seconds[-1]),
        host={part: host[part] / number for part in PARTS},
        operators=operations.started.total(),
        waits=operations.waits.total(),
        peak_bytes=peak_bytes(steps.step, device),
        kernels=kernels,
        gpu_seconds=gpu_seconds,
    )


def _on_gpu(steps: TrainingSteps) -> tuple[int, float]:
    """Return the number of kernels of a step, and the seconds in which any of them runs."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            steps.step()
        torch.cuda.synchronize()
    events = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events = [event for event in events if not getattr(event, 'is_user_annotation', False)]
    times = sorted((event.time_range.start, event.time_range.end) for event in events)
    kernels = sum(not event.name.startswith(COPIES) for event in events)
    return round(kernels / PROFILED), busy_microseconds(times) / 1e6 / PROFILED


def busy_microseconds(times: list[tuple[float, float]]) -> float:
    """Return how long at least one of several intervals lasts; they are sorted by their starts."""
    busy, until = 0.0, float('-inf')
    for start, end in times:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy
