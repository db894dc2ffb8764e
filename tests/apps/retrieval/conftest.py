from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import randomize
from helpers.in_process import call_tool
from helpers.small_xcit import SMALL

from xcit_mm.network.models.image_xcit import ImageXCiT


@pytest.fixture(scope='session')
def checkpoint(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = ImageXCiT(SMALL, 16)
    randomize(model)
    path = tmp_path_factory.mktemp('checkpoint') / 'small.pth'
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture
def embed(monkeypatch, capfd, checkpoint) -> Callable[..., tuple[int, str, str]]:
    """Run tools/embed.py, and return its exit code, output and errors."""
    options = '--checkpoint', checkpoint, '--device', 'cpu', '--size', 64
    return partial(call_tool, monkeypatch, capfd, 'embed.py', *options)
