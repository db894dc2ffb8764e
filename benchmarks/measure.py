"""Measurements of the time and memory of models, which alternate in one process."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from xcit_mm.base.device import DTYPES, choose_device, release_memory
from xcit_mm.base.errors import ArgumentError, ConfigError, is_out_of_memory
from xcit_mm.config.build_model import config_errors
from xcit_mm.config.load import load_config

from .models import build, check_name
from .whole_models import build_whole

COMPILED = '+compile'
# A forward pass of the backbone, a forward and a backward pass of it, predictions for an image.
TASKS = ('backbone', 'training', 'detector', 'segmentor')
FORMATS = {'NCHW': torch.contiguous_format, 'NHWC': torch.channels_last}


@dataclass(frozen=True)
class Settings:
    """What to measure, and how.

    Raises:
        ArgumentError: If a value is invalid or the device cannot be used.
    """

    models: tuple[str, ...]  # names of models.build; the suffix +compile compiles the model
    sizes: tuple[tuple[int, int], ...]  # (height, width) in pixels, multiples of 32
    what: tuple[str, ...] = ('backbone', 'training')  # some of TASKS
    batch_size: int = 1
    device: str = 'cpu'  # or 'cuda', 'cuda:N'
    # Of a backbone's weights in inference, of autocast otherwise.
    dtypes: tuple[str, ...] = ('float32',)
    repeats: int = 5  # measurements of each model after the warm-up
    threads: int | None = None  # of the CPU; None: PyTorch's default

    def __post_init__(self) -> None:
        require_sizes(self.sizes)
        choose_device(self.device)
        for name in self.models:
            check_name(name.removesuffix(COMPILED), self.what)


def require_sizes(sizes: Sequence[tuple[int, int]]) -> None:
    """Raise an ArgumentError if a size (height, width) is not one that all models take."""
    for height, width in sizes:
        if height % 32 or width % 32 or min(height, width) < 32:
            raise ArgumentError(
                f'the image size {height}x{width} is not a multiple of 32 pixels, which all '
                'models need'
            )


@dataclass(frozen=True)
class Measurement:
    """One model at one image size (height, width)."""

    model: str
    what: str
    size: tuple[int, int]
    dtype: str
    seconds: float | None = None  # median per image; None: it did not fit into the memory
    spread: tuple[float, float] | None = None  # shortest and longest time per image
    peak_bytes: int | None = None  # beyond the weights, for the whole batch
    memory_format: str | None = None  # the faster one, which was used


def measure(settings: Settings) -> Iterator[Measurement]:
    """Yield a measurement for each task, size, model and dtype, one size after the other.

    The models alternate at each size, so that a machine that slows down slows all of them.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    for what in settings.what:
        for size in settings.sizes:
            yield from _measure_size(settings, what, size)


def _measure_size(settings: Settings, what: str, size: tuple[int, int]) -> Iterator[Measurement]:
    kinds = list(product(settings.models, settings.dtypes))
    runs = {kind: unless_full(_try, settings, what, size, *kind) for kind in kinds}
    seconds: dict[tuple[str, str], list[float | None]] = {kind: [] for kind in runs}
    for _ in range(settings.repeats):
        for kind, run in runs.items():
            seconds[kind].append(run and unless_full(_seconds, run.step, settings.device))
    for (name, dtype), run in runs.items():
        cell = partial(Measurement, name, what, size, dtype)
        if None in seconds[name, dtype]:
            yield cell()
            continue
        times = sorted(s / settings.batch_size for s in seconds[name, dtype])
        spread = times[0], times[-1]
        yield cell(statistics.median(times), spread, run.peak_bytes, run.memory_format)


class _Run(NamedTuple):
    step: Callable[[], None]
    memory_format: str
    peak_bytes: int


def _try(settings: Settings, what: str, size: tuple[int, int], name: str, dtype: str) -> _Run:
    """Prepare a model; an error of the model of a config names the part of the config."""
    path = name.removesuffix(COMPILED)
    is_config = path.endswith('.py')
    with config_errors(load_config(path)) if is_config else nullcontext():
        return _prepare(settings, what, size, name, dtype)


def _prepare(settings: Settings, what: str, size: tuple[int, int], name: str, dtype: str) -> _Run:
    """Build a model, warm it up in its faster memory format, and measure its peak memory."""
    torch.manual_seed(0)
    dtype, device = DTYPES[dtype], settings.device
    plain_name = name.removesuffix(COMPILED)
    images = torch.randn(settings.batch_size, 3, *size, device=device)
    if what in ('detector', 'segmentor') or plain_name.endswith('.py'):
        model = build_whole(plain_name, what, dtype).to(device)
    else:
        model = build(plain_name, size).to(device)
    if what == 'backbone':
        model, images = model.eval().to(dtype), images.to(dtype)

    def warm_up(memory_format: str) -> Callable[[], None]:
        kind = FORMATS[memory_format]
        model.to(memory_format=kind)
        run = torch.compile(model, dynamic=False) if name.endswith(COMPILED) else model
        function = partial(_train, dtype=dtype) if what == 'training' else _infer
        step = partial(function, run, images.to(memory_format=kind))
        step()
        return step

    fastest = min(FORMATS, key=lambda kind: _seconds(warm_up(kind), device))
    step = warm_up(fastest)
    return _Run(step, fastest, peak_bytes(step, device))


@torch.inference_mode()
def _infer(model: nn.Module, images: Tensor) -> None:
    model(images)


def _train(model: nn.Module, images: Tensor, dtype: torch.dtype) -> None:
    mixed = dtype != torch.float32
    with torch.autocast(images.device.type, dtype) if mixed else nullcontext():
        outputs = model(images)
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    model.zero_grad(set_to_none=True)  # every step starts without gradients in memory


def _seconds(step: Callable[[], None], device: str) -> float:
    release_memory()
    synchronize(device)
    start = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait until a GPU has finished its work."""
    if device.startswith('cuda'):
        torch.cuda.synchronize(device)


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """Measure the peak memory of a step beyond what is allocated before it."""
    release_memory()
    if device.startswith('cuda'):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == '[memory]'))


def unless_full(function: Callable[..., Any], *args: object) -> Any:
    """Return the result of a function, or None if it runs out of memory."""
    try:
        return function(*args)
    except (ConfigError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error.__cause__ or error):
            raise
        return None
