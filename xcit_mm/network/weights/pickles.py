"""What pickles may hold besides tensors, and what restores it without running code.

NumPy's own functions would take bytes of a file as addresses of objects, and mmengine's history
takes its methods from the file. So both have stand-ins here.
"""

import argparse
import re
import threading
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

NUMBERS = re.compile(r'[biufcSU]\d{1,9}')  # NumPy's codes of numbers and strings
NUMPY = ('numpy._core.multiarray', 'numpy.core.multiarray')  # of NumPy 2 and 1
_lock = threading.RLock()  # PyTorch's list of safe globals is that of the process


class _DType:
    """The dtype of an array of numbers or strings."""

    def __init__(self, code: str, *flags: bool) -> None:
        if not NUMBERS.fullmatch(code):
            raise UnpicklingError(f'numpy.dtype {code} is not one of numbers')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array of numbers or strings, which is saved as any other array."""

    def __new__(cls, *args: Any) -> '_Array':
        raise UnpicklingError('numpy.ndarray is called')

    def __setstate__(self, state: tuple) -> None:
        _version, shape, kind, is_fortran, content = state
        if min(shape, default=0) < 0:
            raise UnpicklingError('an array has a negative size')
        super().__setstate__((1, shape, kind.dtype, is_fortran, content))

    def __reduce_ex__(self, protocol: int) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def _empty_array(*args: Any) -> _Array:
    return np.ndarray.__new__(_Array, (0,), 'b')


def _scalar(kind: _DType, content: bytes) -> np.generic:
    return np.ndarray((), kind.dtype, content)[()]


class _History(HistoryBuffer):
    """A history of logged values, without the methods for all histories that are in a file."""

    def __setstate__(self, state: dict) -> None:
        self.__init__(state['_log_history'], state['_count_history'], state['max_length'])
        self.__class__ = HistoryBuffer


def _no_method(*args: Any) -> None:
    """Stand in for ``getattr``, by which a history refers to its own methods."""


# By the names that pickles have for them.
ARRAYS: dict[str, Any] = {
    'builtins.bytes': bytes,
    'numpy.dtype': _DType,
    'numpy.ndarray': _Array,
    **{f'{module}._reconstruct': _empty_array for module in NUMPY},
    **{f'{module}.scalar': _scalar for module in NUMPY},
}
SAFE = ARRAYS | {
    'argparse.Namespace': argparse.Namespace,  # in the authors' release
    'builtins.getattr': _no_method,
    'mmengine.logging.history_buffer.HistoryBuffer': _History,
}


def load_safely(file: Path, map_location: Any) -> Any:
    """Call ``torch.load`` with ``weights_only`` and :data:`SAFE` alone.

    What other packages have declared safe could restore a value under the same name.
    """
    with _lock:
        others = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([(value, name) for name, value in SAFE.items()])
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(others)
