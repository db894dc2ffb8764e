"""The values that the pickle of a checkpoint may hold, and the functions that restore them.

``torch.load(weights_only=True)`` runs no code, but a hostile pickle can make it take all memory,
overflow the stack or, with NumPy's classes allowed, use numbers as addresses. So
:func:`checked_pickle` follows a pickle before PyTorch does, and directs the names in it to
functions that validate their arguments.
"""

import argparse
import datetime
import math
import pickletools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor

from ...base.errors import one_line

ALIAS = 'xcit_mm.'  # in front of the names of VALIDATED, under which nobody else registers anything
# A value that is used again may be copied there. All such copies may take ROOM bytes, and GROWTH
# bytes for each byte of the pickle.
ROOM, GROWTH = 2**20, 64
MAX_DEPTH = 64  # levels of nested values; checkpoints have less than 10
MAX_BITS = 64  # of an integer: more of them can be chosen so that all have the same hash
DTYPE = re.compile(r'[biufcSU]\d{1,9}')  # NumPy's codes of numbers and strings
LOGGED = [(1, kind) for kind in 'biuf']  # dimensions and kinds of arrays of logged values
HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'


class UnreadableError(Exception):
    """A checkpoint cannot be read; the message is the reason, without the file."""


class UnsafeClassError(UnreadableError):
    """A checkpoint needs a class or function that could run code.

    Args:
        name: Its full name.
    """

    def __init__(self, name: str) -> None:
        self.name = one_line(name)
        super().__init__(
            f'it needs more than weights ({self.name}), which could run any code; if you trust its '
            'source, pass --trust-checkpoint (trusted=True in init_cfg)'
        )


class _Value:
    """A value on the stack of a pickle, as far as :func:`checked_pickle` follows it.

    Attributes:
        content: A string, an integer, the name of a class or function, or a tuple of these.
        maker: The name of the class or function that makes the value.
        size: The approximate bytes of a copy.
        depth: The levels of values in it.
    """

    __slots__ = ('content', 'depth', 'maker', 'size')

    def __init__(self, content: Any = None, maker: str | None = None) -> None:
        self.content, self.maker = content, maker
        self.size, self.depth = len(content) if isinstance(content, str) else 1, 0

    def add(self, parts: list['_Value']) -> '_Value':
        self.size += sum(part.size for part in parts)
        self.depth = max([self.depth, *(part.depth + 1 for part in parts)])
        if self.depth > MAX_DEPTH:
            raise UnreadableError(f'its values are nested in more than {MAX_DEPTH} levels')
        return self


def checked_pickle(data: bytes, sizes: Mapping[str, int]) -> bytes:
    """Follow a pickle without building anything, and direct its names to :data:`VALIDATED`.

    ``sizes`` are the bytes of each record of the file.
    """
    pieces, num_copied = [], 0
    for position, argument, name in _validated_names(data, sizes):
        module, _, attribute = f'{ALIAS}{name}'.rpartition('.')
        pieces += [data[num_copied:position], f'c{module}\n{attribute}\n'.encode()]
        num_copied = position + len(f'c{argument}\n')
    return b''.join([*pieces, data[num_copied:]])


def _validated_names(data: bytes, sizes: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
    """Follow a pickle, and yield the position, text and full name of what VALIDATED restores."""
    stack: list[_Value] = []
    outer_stacks: list[list[_Value]] = []
    memo: dict[int, _Value] = {}
    room = ROOM + GROWTH * len(data)
    for opcode, argument, position in pickletools.genops(data):
        if opcode.proto > 2:
            raise UnreadableError('its pickle protocol is not 2, the default of torch.save')
        if opcode.name == 'MARK':
            outer_stacks.append(stack)
            stack = []
        elif opcode.name in ('BINPUT', 'LONG_BINPUT'):
            memo[argument] = stack[-1]
        elif opcode.name in ('BINGET', 'LONG_BINGET'):
            stack.append(memo[argument])
            room -= memo[argument].size
            if room < 0:
                raise UnreadableError('its values repeat each other without end')
        elif opcode.name == 'GLOBAL':
            name = argument.replace(' ', '.').replace('__builtin__.', 'builtins.')
            if name in VALIDATED:
                yield position, argument, name
            elif name not in TORCH_NAMES:
                raise UnsafeClassError(name)
            stack.append(_Value(name))
        elif not opcode.stack_before:
            if opcode.name == 'LONG1' and argument.bit_length() > MAX_BITS:
                raise UnreadableError(f'it has an integer of more than {MAX_BITS} bits')
            stack += [_Value(argument)] * len(opcode.stack_after)
        else:
            parts = []
            if pickletools.markobject in opcode.stack_before:
                parts, stack = stack, outer_stacks.pop()
            for kind in opcode.stack_before:
                if kind not in (pickletools.markobject, pickletools.stackslice):
                    parts.insert(0, stack.pop())
            stack += [_combined(opcode.name, parts, sizes)] * len(opcode.stack_after)


def _combined(instruction: str, parts: list[_Value], sizes: Mapping[str, int]) -> _Value:
    """Return what an instruction of a pickle makes of values on the stack."""
    if instruction in ('APPEND', 'APPENDS', 'SETITEM', 'SETITEMS'):
        return parts[0].add(parts[1:])
    if instruction == 'BUILD':
        if parts[0].maker not in RESTORED:
            raise UnreadableError(f'it changes a value of {one_line(str(parts[0].maker))}')
        return parts[0].add(parts[1:])
    if instruction in ('REDUCE', 'NEWOBJ'):
        return _Value(maker=parts[0].content).add(parts)
    if instruction == 'BINPERSID':
        match parts[0].content:
            case ('storage', str(kind), str(key), str(), int(num_elements)) if (
                key.isascii() and num_elements * STORAGES.get(kind, -1) == sizes.get(f'data/{key}')
            ):
                return _Value().add(parts)
        raise UnreadableError('it is damaged: a storage is not as large as its record')
    return _Value(tuple(part.content for part in parts)).add(parts)


def _tensor(storage: Any, offset: int, size: tuple, stride: tuple, *rest: Any) -> Tensor:
    """Restore a tensor, and not the hooks that a file may give it.

    One that repeats the numbers of its storage, with a stride of 0, could be larger than any memory
    when it is copied.
    """
    untyped = storage._untyped_storage
    dtype = next((value for value in rest if isinstance(value, torch.dtype)), storage.dtype)
    if math.prod(size) * dtype.itemsize > untyped.nbytes():
        raise UnreadableError('it is damaged: a tensor is larger than its storage')
    return torch.empty(0, dtype=dtype, device=untyped.device).set_(untyped, offset, size, stride)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != 'latin1':  # 'hex' of 'hex' doubles the bytes each time
        raise UnreadableError(f'it has bytes in the encoding {one_line(str(encoding))}')
    return text.encode('latin1')


class _DType:
    """The dtype of an array of numbers or strings. Objects would use numbers as addresses."""

    def __init__(self, code: str, *flags: bool) -> None:
        if not DTYPE.fullmatch(code):
            raise UnsafeClassError(f'numpy.dtype {code}')
        self._code = code

    def __setstate__(self, state: tuple) -> None:
        _version, byte_order, *structure = state[:5]
        if byte_order not in ('<', '>', '=', '|') or structure != [None] * 3:
            raise UnsafeClassError('numpy.dtype of a structure')
        self._code = byte_order + self._code.lstrip('<>=|')

    def fitting(self, shape: tuple[int, ...], content: bytes) -> np.dtype:
        """Return the dtype for an array that is as large as its content."""
        dtype = np.dtype(self._code)
        count = math.prod(shape)
        # Strings without characters take no bytes, so that there could be any number of them.
        is_endless = not dtype.itemsize and count > 1
        if is_endless or count * dtype.itemsize != len(content) or min(shape, default=0) < 0:
            raise UnreadableError('it is damaged: an array is not as large as its content')
        return dtype


class _Array(np.ndarray):
    """An array of numbers or strings, which is saved as any other array."""

    def __new__(cls, *args: Any) -> '_Array':
        raise UnsafeClassError('numpy.ndarray() with arguments')

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, is_fortran, content = state
        super().__setstate__((1, shape, dtype.fitting(shape, content), is_fortran, content))

    def __reduce_ex__(self, protocol: int) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def _empty_array(*args: Any) -> _Array:
    return np.ndarray.__new__(_Array, (0,), 'b')


def _scalar(dtype: _DType, content: bytes) -> np.generic:
    return np.ndarray((), dtype.fitting((), content), content)[()]


class _History(HistoryBuffer):
    """A history of logged values; mmengine's takes methods for all histories from the file."""

    def __setstate__(self, state: dict) -> None:
        arrays = [state['_log_history'], state['_count_history']]
        if any(not isinstance(a, _Array) or (a.ndim, a.dtype.kind) not in LOGGED for a in arrays):
            raise UnreadableError('it is damaged: a history of logged values holds no numbers')
        self.__init__(*arrays, max_length=state['max_length'])
        self.__class__ = HistoryBuffer


def _history_method(owner: Any, name: str) -> Any:
    if owner is not _History or name.startswith('_'):
        raise UnsafeClassError(f'builtins.getattr {name}')
    return getattr(HistoryBuffer, name)


NUMPY = ('numpy._core.multiarray', 'numpy.core.multiarray')  # of NumPy 2 and 1
EMPTY_ARRAYS = {f'{module}._reconstruct': _empty_array for module in NUMPY}
# What restores a value, by the name that files have for it.
VALIDATED: dict[str, Any] = {
    **{f'torch._utils._rebuild_tensor{version}': _tensor for version in ('', '_v2', '_v3')},
    '_codecs.encode': _encode,
    'builtins.bytes': lambda: b'',
    'builtins.getattr': _history_method,  # a history refers to its own methods
    HISTORY: _History,
    'numpy.dtype': _DType,
    'numpy.ndarray': _Array,
    **EMPTY_ARRAYS,
    **{f'{module}.scalar': _scalar for module in NUMPY},
    'argparse.Namespace': argparse.Namespace,  # in the authors' release
    **{
        f'datetime.{kind.__name__}': kind
        for kind in (datetime.date, datetime.datetime, datetime.timedelta, datetime.timezone)
    },
}
# What may be given a state after it was made.
RESTORED = {*EMPTY_ARRAYS, 'numpy.dtype', HISTORY, 'argparse.Namespace', 'collections.OrderedDict'}
# The bytes of a number in each kind of storage.
STORAGES = {'torch.storage.UntypedStorage': 1} | {
    f'torch.{name}': getattr(torch, name)._dtype.itemsize
    for name in dir(torch)
    if name.endswith('Storage') and name not in ('TypedStorage', 'UntypedStorage')
}
# What PyTorch itself restores.
TORCH_NAMES = {
    *STORAGES,
    *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
    *('torch.Size', 'torch.device', 'torch._utils._rebuild_parameter'),
    *('collections.OrderedDict', 'collections.Counter', 'builtins.set', 'builtins.complex'),
}
