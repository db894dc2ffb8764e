"""Checkpoints are pickles, which can run any code: here they cannot.

Since PyTorch 2.6 ``torch.load(weights_only=True)`` takes classes that are allowed by name. Before,
it takes tensors alone, and not the classes that are in every checkpoint of mmengine; there an
unpickler that looks up nothing else does the same.
"""

import argparse
import codecs
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.utils import digit_version

ALLOWS_BY_NAME = digit_version(torch.__version__) >= digit_version('2.6')
DTYPES = '?bhilqBHILQefdUS'  # NumPy's characters for numbers and strings


def load_plain(file: Path, map_location: Any) -> Any:
    """Read a file of ``torch.save`` without running code that is in it.

    Args:
        file: The file.
        map_location: As of ``torch.load``.

    Raises:
        UnpicklingError: If it asks for more than tensors and the plain classes of checkpoints;
            the message has it behind the word GLOBAL, where it has a name.
    """
    if ALLOWS_BY_NAME:
        allow_plain_classes()  # again: onedl's mmengine takes some back after a file that it read
        return torch.load(file, map_location=map_location, weights_only=True)
    plain_pickle = SimpleNamespace(
        __name__=__name__,
        Unpickler=_PlainUnpickler,
        load=lambda stream, **kwargs: _PlainUnpickler(stream, **kwargs).load(),
    )
    return torch.load(
        file, map_location=map_location, weights_only=False, pickle_module=plain_pickle
    )


def allow_plain_classes() -> None:
    """Let any ``torch.load(weights_only=True)`` read what checkpoints hold beside tensors.

    It is the default since PyTorch 2.6, and mmengine 0.10.7 cannot read its own files with it.
    """
    if ALLOWS_BY_NAME:
        torch.serialization.add_safe_globals([(v, name) for name, v in _plain_globals().items()])


def _plain_globals() -> dict[str, Any]:
    """What checkpoints hold beside tensors, by the names that files call it.

    mmengine's hold the history of the logged values, those of the authors' release an
    ``argparse.Namespace``.
    """
    allowed: dict[str, Any] = {
        'argparse.Namespace': argparse.Namespace,
        'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer,
        'builtins.getattr': _history_method,
        'numpy.ndarray': _Array,
        'numpy.dtype': np.dtype,
        '_codecs.encode': codecs.encode,  # of arrays, before pickle's protocol 3
        'builtins.set': set,
    }
    for package in ('numpy._core', 'numpy.core'):  # of NumPy 2, of NumPy 1
        allowed[f'{package}.multiarray._reconstruct'] = np.array(0).__reduce__()[0]
        allowed[f'{package}.multiarray.scalar'] = np.float64(0).__reduce__()[0]
    for character in DTYPES:
        kind = type(np.dtype(character))
        allowed[f'{kind.__module__}.{kind.__qualname__}'] = kind
    return allowed


def _history_method(owner: object, name: str) -> Any:
    """What getattr may do in a checkpoint: a history refers to its own methods by it."""
    if owner is not HistoryBuffer or name.startswith('_'):
        raise pickle.UnpicklingError(f'GLOBAL builtins.getattr was asked for {name!r} of {owner!r}')
    return getattr(owner, name)


class _Array(np.ndarray):
    """An array as a checkpoint restores it, which cannot be called.

    ``numpy.ndarray`` called with a buffer and the dtype of objects takes bytes for addresses.
    """

    def __new__(cls, *args: object) -> '_Array':
        raise pickle.UnpicklingError('GLOBAL numpy.ndarray is called, which no array needs')

    def __reduce_ex__(self, protocol: int) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)  # into the next checkpoint as any array


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = {**torch._weights_only_unpickler._get_allowed_globals(), **_plain_globals()}
        full_name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')  # of protocol 2
        if full_name not in allowed:
            raise pickle.UnpicklingError(f'GLOBAL {full_name} is not allowed')
        return allowed[full_name]
