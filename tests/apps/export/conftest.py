from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from helpers.small_models import save_small


@pytest.fixture(scope='session')
def models(tmp_path_factory) -> Callable[[str], tuple[Path, Path]]:
    """Return the config and the checkpoint of a small model, made once."""
    folder = tmp_path_factory.mktemp('models')
    return cache(lambda kind: save_small(kind, folder))
