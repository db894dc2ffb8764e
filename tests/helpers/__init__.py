"""What the tests share: places, bounds, and comparisons of tensors."""

import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]

DATA = ROOT / 'tests' / 'expected'

# Seconds for what takes a few: a machine whose disk is busy may take minutes to import PyTorch.
TIMEOUT = 900

# How the authors and timm call the archs.
RELEASE_NAMES = dict(
    n12='nano_12',
    t12='tiny_12',
    t24='tiny_24',
    s12='small_12',
    s24='small_24',
    m24='medium_24',
    l24='large_24',
)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, and fail where it hangs."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, 'the condition is never met'
        time.sleep(0.02)


def wait_until_session_ends(pid: int) -> None:
    """Wait until a process that began a session, and all processes that it started, have ended."""
    command = ['pgrep', '--session', str(pid)]
    wait_until(lambda: subprocess.run(command, capture_output=True).returncode == 1)


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Norm of the difference over norm of the reference."""
    return ((value - reference).norm() / reference.norm()).item()


def rounding_error(dtype: torch.dtype, roundings: int) -> float:
    """Relative error of values that are rounded as often, on average.

    A rounding moves a number by up to half a unit in the last place, evenly and to either side,
    so that the squares of these errors add up.
    """
    return torch.finfo(dtype).eps * (roundings / 12) ** 0.5


def network_error(network: nn.Module, dtype: torch.dtype) -> float:
    """Relative difference of two computations of a network, each by any kernels.

    A layer adds up as many products as a row of its weights has. The kernels of a processor choose
    the order of these additions, and round at most once in each.
    """
    additions = sum(weight[0].numel() for weight in network.parameters() if weight.ndim > 1)
    return rounding_error(dtype, 2 * additions)


def assert_same_gradients(
    names: Iterable[str],
    gradients: Iterable[Tensor],
    expected: Collection[Tensor],
    tolerance: float,
) -> None:
    """Relative to each one, and to a thousandth of the largest: some are zero but for rounding."""
    largest = max(g.norm().item() for g in expected)
    for name, value, wanted in zip(names, gradients, expected, strict=True):
        bound = tolerance * max(wanted.norm().item(), 1e-3 * largest)
        assert (value - wanted).norm() <= bound, name


def held_bytes(function: Callable[[], object]) -> int:
    """Memory that PyTorch holds after a call and did not before, its result included."""
    with torch.profiler.profile(profile_memory=True) as profile:
        result = function()
    events = profile.profiler.kineto_results.events()
    held = sum(event.nbytes() for event in events if event.name() == '[memory]')
    del result
    return held


def randomize(module: nn.Module) -> None:
    """Non-trivial values everywhere: at the initial ones of gamma 1e-5 every error hides."""
    generator = torch.Generator().manual_seed(1)

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if 'gamma' in name or 'temperature' in name or name.endswith('running_var'):
                uniform(tensor, 0.5, 1.5)
            elif tensor.is_floating_point() and tensor.ndim == 1:  # biases, means and norms
                uniform(tensor, -0.3, 0.3)
                if name.endswith('weight'):
                    tensor += 1
