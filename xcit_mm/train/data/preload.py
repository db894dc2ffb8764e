"""The modules that data workers need, imported by the fork server so that they share them."""

import importlib
import os
import sys
from pickle import UnpicklingError
from types import TracebackType

from ...base.environment import quiet
from . import PRELOAD


def print_error(kind: type, error: BaseException, traceback: TracebackType | None) -> None:
    """Print why a worker cannot start, unless the run has ended while it started.

    Then the description of the worker is cut off, or its locks, files without a name, are gone.
    """
    is_lock = isinstance(error, FileNotFoundError) and error.filename is None
    if not is_lock and not isinstance(error, (EOFError, UnpicklingError)):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = print_error
if PRELOAD in os.environ:  # not in a server that is started again after its end
    with quiet():
        importlib.import_module(os.environ[PRELOAD])
