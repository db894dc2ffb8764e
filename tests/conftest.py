import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import MMLogger
from torch import Tensor, nn

from xcit_mm.datasets.shapes import ShapesSpec, make_shapes

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / 'tests' / 'data'
# Seconds for what takes a few: a machine whose disk is busy may take minutes to import PyTorch.
PATIENCE = 900
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


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Return once something has come to be so; fail where it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it did not come to be so'
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _fixed_randomness():
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def golden() -> Callable[[str], dict[str, Tensor]]:
    """Load an archive of tests/data as tensors by name."""

    def load(name: str) -> dict[str, Tensor]:
        with np.load(DATA / f'{name}.npz') as archive:
            return {key: torch.from_numpy(archive[key]) for key in archive.files}

    return load


@pytest.fixture(scope='session')
def shapes_root(tmp_path_factory) -> Path:
    """A small shapes dataset, drawn once."""
    root = tmp_path_factory.mktemp('data') / 'shapes'
    make_shapes(root, ShapesSpec(num_train=24, num_val=4))
    return root


@pytest.fixture(scope='session')
def run_tool() -> Callable[..., subprocess.CompletedProcess]:
    """Run a tool as a user types it, from the root of the repository."""

    def run(tool: str, *args: object, env: dict[str, str] | None = None):
        command = [sys.executable, f'tools/{tool}', *map(str, args)]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)

    return run


@pytest.fixture(scope='module')  # its event loop would be in the way of other modules' own
def browser():
    """A headless browser of the system, as playwright's ``Browser``."""
    from playwright.sync_api import sync_playwright

    names = ('chromium', 'chromium-browser', 'google-chrome')
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        (pytest.fail if 'CI' in os.environ else pytest.skip)(f'none of {", ".join(names)} is here')
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=['--no-sandbox'], timeout=PATIENCE * 1000
        )
        yield browser
        browser.close()


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What is logged during the test."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Norm of the difference over norm of the reference."""
    return ((value - reference).norm() / reference.norm()).item()


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
