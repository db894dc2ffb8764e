"""A copy of the repository to build from: a build writes beside its sources."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

from helpers import ROOT


def copy_clone(target: Path) -> None:
    """Copy what .gitignore does not name, links as links."""
    ignored = ['.git', *(line.strip('/') for line in (ROOT / '.gitignore').read_text().split())]
    target.mkdir()
    for path in ROOT.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in ignored):
            continue
        if path.is_dir():
            skip = shutil.ignore_patterns('__pycache__')
            shutil.copytree(path, target / path.name, symlinks=True, ignore=skip)
        else:
            shutil.copy(path, target)
