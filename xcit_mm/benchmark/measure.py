"""Time and memory of models, interleaved in one process."""

import ctypes
import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, reason
from .models import build, check_name

GIB = 2**30
COMPILED = '+compile'
OUT_OF_MEMORY = 'out of memory'
MODES = ('inference', 'training')
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}
FORMATS = {'NCHW': torch.contiguous_format, 'NHWC': torch.channels_last}


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        models: Names of :func:`~xcit_mm.benchmark.models.build`; ``+compile`` behind a name
            compiles the model.
        sizes: Image sizes (height, width) in pixels, multiples of 32.
        modes: 'inference' (a forward pass) and 'training' (a forward and a backward pass).
        batch_size: Images at a time.
        device: 'cpu', 'cuda' or 'cuda:N'.
        dtype: A name of DTYPES. In inference the weights have it, in training autocast.
        repeats: Measurements of each model, after a warm-up; the median counts.
        threads: Of the CPU; None: as PyTorch has it.
        memory_limit: GiB that the process may use; None: what the machine has.
    """

    models: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    modes: tuple[str, ...] = MODES
    batch_size: int = 1
    device: str = 'cpu'
    dtype: str = 'float32'
    repeats: int = 5
    threads: int | None = None
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        for height, width in self.sizes:
            if height % 32 or width % 32 or min(height, width) < 32:
                raise ArgumentError(
                    f'an image size of {height}x{width} does not consist of multiples of 32 '
                    'pixels, which every model here divides'
                )
        for name in ('batch_size', 'repeats'):
            if getattr(self, name) < 1:
                raise ArgumentError(f'{name}={getattr(self, name)} is not at least 1')
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ArgumentError(
                f'device={self.device!r} cannot be used with PyTorch {torch.__version__} here '
                f"({reason(error)}); device='cpu' measures without a GPU"
            ) from None
        for name in self.models:
            check_name(name.removesuffix(COMPILED))


@dataclass(frozen=True)
class Measurement:
    """One model at one size.

    Attributes:
        model: Its name.
        mode: 'inference' or 'training'.
        size: (height, width) in pixels.
        seconds: Median for one image; None if it did not fit.
        spread: The fastest and the slowest, likewise.
        peak_bytes: Memory at its highest, beyond the weights, for the whole batch.
        memory_format: The faster one, which was taken: 'NCHW' or 'NHWC'.
    """

    model: str
    mode: str
    size: tuple[int, int]
    seconds: float | None = None
    spread: tuple[float, float] | None = None
    peak_bytes: int | None = None
    memory_format: str | None = None


@dataclass
class _Runner:
    """A model that is ready to be run."""

    name: str
    step: Callable[[], None]
    memory_format: str
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    fits: bool = True


def measure(settings: Settings, say: Callable[[str], None]) -> Iterator[Measurement]:
    """Measure all models; one that does not fit into the memory is marked, the run goes on.

    At every size the models take turns, so that a machine that slows down slows all of them.

    Args:
        settings: What and how.
        say: Is told what is being measured.

    Yields:
        A measurement for each mode, size and model, in this order; those of a size together.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with _memory_limit(settings):
        for mode in settings.modes:
            for size in settings.sizes:
                say(f'{mode}, {size[0]}x{size[1]}: {", ".join(settings.models)}')
                yield from _measure_size(settings, mode, size, say)


def environment(settings: Settings) -> dict[str, object]:
    """The machine, the versions and the settings, for the reader of a result."""
    cuda = settings.device.startswith('cuda')
    return {
        'processor': _processor(),
        'gpu': torch.cuda.get_device_name(settings.device) if cuda else None,
        'threads': torch.get_num_threads(),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'system': platform.platform(),
        **asdict(settings),
    }


def _measure_size(
    settings: Settings, mode: str, size: tuple[int, int], say: Callable[[str], None]
) -> Iterator[Measurement]:
    runners: list[_Runner] = []
    for name in settings.models:
        runner = _guarded(lambda name=name: _prepare(settings, name, mode, size))
        runners.append(runner or _Runner(name, lambda: None, '', fits=False))
    for runner in runners:
        if runner.fits:
            runner.peak_bytes = _guarded(lambda r=runner: _peak_bytes(r.step, settings.device))
            runner.fits = runner.peak_bytes is not None
    for _ in range(settings.repeats):
        for runner in runners:
            if runner.fits:
                seconds = _guarded(lambda r=runner: _seconds(r.step, settings.device))
                runner.fits = seconds is not None
                runner.seconds.append(seconds)
    for runner in runners:
        if not runner.fits:
            say(f'{runner.name} at {size[0]}x{size[1]}: {OUT_OF_MEMORY}')
            yield Measurement(runner.name, mode, size)
            continue
        seconds = [s / settings.batch_size for s in runner.seconds]
        yield Measurement(
            runner.name,
            mode,
            size,
            statistics.median(seconds),
            (min(seconds), max(seconds)),
            runner.peak_bytes,
            runner.memory_format,
        )


def _prepare(settings: Settings, name: str, mode: str, size: tuple[int, int]) -> _Runner:
    """Build, warm up, and take the faster memory format."""
    torch.manual_seed(0)
    dtype = DTYPES[settings.dtype]
    model = build(name.removesuffix(COMPILED), size).to(settings.device)
    image = torch.randn(settings.batch_size, 3, *size, device=settings.device)
    if mode == 'inference':
        model, image = model.eval().to(dtype), image.to(dtype)

    def ready(memory_format: torch.memory_format) -> Callable[[], None]:
        model.to(memory_format=memory_format)
        images = image.to(memory_format=memory_format)
        run = torch.compile(model, dynamic=False) if name.endswith(COMPILED) else model
        step = _inference(run, images) if mode == 'inference' else _training(run, images, dtype)
        step()
        return step

    chosen = min(FORMATS, key=lambda name: _seconds(ready(FORMATS[name]), settings.device))
    return _Runner(name, ready(FORMATS[chosen]), chosen)


def _inference(model: nn.Module, image: Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.inference_mode():
            model(image)

    return step


def _training(model: nn.Module, image: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    device = image.device.type

    def step() -> None:
        mixed = torch.autocast(device, dtype) if dtype != torch.float32 else nullcontext()
        with mixed:
            maps = model(image)
        torch.autograd.backward(maps, [torch.ones_like(m) for m in maps])
        model.zero_grad(set_to_none=True)  # every step starts without gradients in memory

    return step


def _seconds(step: Callable[[], None], device: str) -> float:
    _settle()
    _wait(device)
    start = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith('cuda'):
        torch.cuda.synchronize(device)


def _settle() -> None:
    """Give freed memory back to the system: what one model leaves must not help the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == 'linux' and hasattr(ctypes.CDLL(None), 'malloc_trim'):
        ctypes.CDLL(None).malloc_trim(0)


def _peak_bytes(step: Callable[[], None], device: str) -> int:
    """Memory at its highest while a step runs, beyond what is there before."""
    _settle()
    if device.startswith('cuda'):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == '[memory]':
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def _guarded(function: Callable[[], object]) -> object | None:
    """The function's result, or None if there was not enough memory for it."""
    try:
        return function()
    except (torch.cuda.OutOfMemoryError, MemoryError):
        return None
    except RuntimeError as error:  # as PyTorch, and oneDNN, say it on a CPU
        if not any(
            sign in str(error)
            for sign in ("can't allocate memory", 'out of memory', 'could not create a memory')
        ):
            raise
        return None
    finally:
        _settle()


@contextmanager
def _memory_limit(settings: Settings) -> Iterator[None]:
    """Let allocations fail instead of the system ending the process."""
    if settings.device.startswith('cuda'):
        if settings.memory_limit:
            total = torch.cuda.get_device_properties(settings.device).total_memory
            fraction = min(1.0, settings.memory_limit * GIB / total)
            torch.cuda.set_per_process_memory_fraction(fraction, settings.device)
        yield
        return
    if sys.platform != 'linux':
        yield
        return
    import resource

    meminfo = dict(
        line.split(':') for line in Path('/proc/meminfo').read_text().splitlines() if ':' in line
    )
    available = int(meminfo['MemAvailable'].split()[0]) * 1024
    limit = int(settings.memory_limit * GIB) if settings.memory_limit else int(0.95 * available)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _processor() -> str:
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
