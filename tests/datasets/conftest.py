import shutil
from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path, shapes_root) -> Path:
    """A copy of the shapes that a test may damage."""
    return shutil.copytree(shapes_root, tmp_path / 'shapes')
