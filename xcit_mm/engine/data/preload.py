"""Imported by the fork server, so that the data workers share the modules that they need."""

import importlib
import os
import sys
from types import TracebackType

from ...environment import quiet
from .workers import PRELOAD


def print_error(kind: type, error: BaseException, traceback: TracebackType | None) -> None:
    """Print why a worker cannot start, unless the run ended meanwhile and took its locks away."""
    if kind is not FileNotFoundError:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = print_error
with quiet():
    importlib.import_module(os.environ.get(PRELOAD, 'xcit_mm.engine'))
