import gc
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch

import cv2
import mmengine.config.config
import numpy as np
import pytest
import torch
import yapf.yapflib.yapf_api
from filelock import FileLock
from helpers import DATA, TIMEOUT
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights
from helpers.runs import options
from helpers.tool_server import Process, server_folder
from mmengine.logging import MMLogger
from torch import Tensor

from xcit_mm import load_model
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes

# The files that take longest come first, so that processes which share the tests end together.
LONGEST = (
    'project/test_docs.py',
    'large/test_several_processes.py',
    'train/test_interruptions.py',
    'export/test_export.py',
    'export/test_graphs.py',
    'project/test_systems.py',
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).endswith(LONGEST))


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption('numprocesses', None):  # the processes of pytest-xdist follow
        server_folder()
    # PyTorch starts its threads for gradients at the first backward pass. After an export it takes
    # this machine for one with GPUs, starts more of them, and forks can compute no gradients.
    torch.ones((), requires_grad=True).backward()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # nanobind reports what is left at the end of the process


@pytest.fixture(autouse=True)
def _fixed_randomness():
    torch.manual_seed(0)


@pytest.fixture(scope='module', autouse=True)
def _quick_garbage_collection():
    """Leave what is imported out of later collections: streaming an image starts two of them."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def root(tmp_path, shapes_root) -> Path:
    """A copy of the shapes that a test may damage."""
    return shutil.copytree(shapes_root, tmp_path / 'shapes')


@pytest.fixture(scope='session')
def run_tool() -> Callable[..., subprocess.CompletedProcess]:
    """Run a tool as a user types it, from the root of the repository, in a forked process."""

    def run(tool: str, *args: object, env: dict[str, str] | None = None):
        command = [f'tools/{tool}', *map(str, args)]
        with TemporaryFile('w+') as output, TemporaryFile('w+') as errors:
            code = Process(command, output, errors, env=env).wait()
            texts = [file.seek(0) or file.read() for file in (output, errors)]
        return subprocess.CompletedProcess(command, code, *texts)

    return run


@pytest.fixture(scope='session')
def trained(run_tool, shapes_root, tmp_path_factory) -> Callable[[str], tuple[Path, str]]:
    """Return the work dir and the output of a training of DETECTOR or SEGMENTOR in twelve steps.

    The trainings are shared by all tests, which must not write to them, and by all processes of
    pytest-xdist.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if 'PYTEST_XDIST_WORKER' in os.environ else folder

    def train(config: str) -> tuple[Path, str]:
        work_dir = folder / Path(config).stem
        printed = folder / f'{work_dir.name}.txt'
        with FileLock(f'{work_dir}.lock'):
            if not printed.exists():
                done = run_tool(
                    'train.py', config, '--work-dir', work_dir, *options(shapes_root, 12, True)
                )
                assert done.returncode == 0, done.stderr[-3000:]
                printed.write_text(done.stdout + done.stderr)
        return work_dir, printed.read_text()

    return train


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
            executable_path=path, args=['--no-sandbox'], timeout=TIMEOUT * 1000
        )
        yield browser
        browser.close()


@pytest.fixture(autouse=True, scope='session')
def _unformatted_configs() -> Iterator[None]:
    """Spare the layout of configs, which takes mmengine longer than the steps of short runs."""
    name, places = 'FormatCode', (mmengine.config.config, yapf.yapflib.yapf_api)
    with ExitStack() as stack:
        for place in places:  # where the two families of packages look for it
            stack.enter_context(
                patch.object(place, name, lambda text, **_: (text, True), create=True)
            )
        yield


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


@pytest.fixture(scope='session')
def weights(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {
        config: save_random_weights(config, folder / f'{Path(config).stem}.pth')
        for config in (DETECTOR, SEGMENTOR)
    }


@pytest.fixture(scope='session')
def detector(weights):
    return load_model(DETECTOR, weights[DETECTOR], device='cpu')


@pytest.fixture(scope='session')
def segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], device='cpu')


@pytest.fixture(scope='session')
def image(shapes_root) -> np.ndarray:
    """RGB, 130 x 160."""
    path = min((shapes_root / 'coco/val2017').iterdir())
    return np.ascontiguousarray(cv2.imread(str(path))[:130, :, ::-1])


@pytest.fixture(scope='session')
def full_size_detector(weights):
    """A detector that predicts each image at its own size."""
    return load_model(DETECTOR, weights[DETECTOR], 'cpu', full_size=True)


@pytest.fixture(scope='session')
def full_size_segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', full_size=True)


@pytest.fixture(scope='session')
def free_port() -> Callable[[], int]:
    def find() -> int:
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            return listener.getsockname()[1]

    return find
