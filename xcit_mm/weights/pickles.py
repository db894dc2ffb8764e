"""Check the pickle of a checkpoint before ``torch.load(weights_only=True)`` reads it.

PyTorch runs no code then, but a hostile pickle can make it take all memory, hang or, with NumPy's
classes allowed, use numbers as addresses.
"""

import argparse
import math
import pickletools
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor

from ..errors import one_line

ALIAS = 'xcit_mm.'  # in front of the names of STAND_INS, under which nobody else registers anything
# A value that is used again may be copied there. All such copies may take ROOM bytes, and GROWTH
# bytes for each byte of the pickle.
ROOM, GROWTH = 2**20, 64
MAX_BITS = 64  # of a key: longer integers can be chosen such that all have the same hash
DTYPE = re.compile(r'[biufcSU][1-9]\d{0,8}')  # NumPy's codes of numbers and strings


class UnreadableError(Exception):
    """A checkpoint cannot be read; the message is the reason, without the file."""


class _Value:
    """A value on the stack of a pickle."""

    def __init__(self, content: Any = None, maker: str | None = None) -> None:
        self.content = content  # a string, a number, the name of a class, or a tuple of these
        self.maker = maker  # the name of the class or function that makes the value
        self.size = len(content) if isinstance(content, str) else 1  # bytes of a copy, roughly

    def add(self, parts: list['_Value']) -> '_Value':
        self.size += sum(part.size for part in parts)
        return self


def checked_pickle(data: bytes, record_sizes: Mapping[str, int]) -> bytes:
    """Follow a pickle without building anything, and replace its names by those of STAND_INS.

    PyTorch refuses the instructions that are not followed here. ``record_sizes`` are the bytes of
    each record of the file, which a storage must have.
    """
    pieces, copied = [], 0
    stack: list[_Value] = []
    outer_stacks: list[list[_Value]] = []
    memo: dict[int, _Value] = {}
    room = ROOM + GROWTH * len(data)
    for opcode, argument, position in pickletools.genops(data):
        if opcode.proto > 2:
            raise UnreadableError('it has another pickle protocol than 2, which torch.save writes')
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
            if name in STAND_INS:
                module, _, attribute = f'{ALIAS}{name}'.rpartition('.')
                pieces += [data[copied:position], f'c{module}\n{attribute}\n'.encode()]
                copied = data.index(b'\n', data.index(b'\n', position) + 1) + 1
            elif name not in TORCH_NAMES:
                raise _unsafe(name)
            stack.append(_Value(name))
        elif not opcode.stack_before:
            stack += [_Value(argument)] * len(opcode.stack_after)
        else:
            count = len(opcode.stack_before)
            parts = []
            if pickletools.markobject in opcode.stack_before:
                parts, stack = stack, outer_stacks.pop()
                count -= 2  # the mark, and what is above it
            if count:
                parts = stack[-count:] + parts
                del stack[-count:]
            stack.append(_combine(opcode.name, parts, record_sizes))
    return b''.join([*pieces, data[copied:]])


def _combine(instruction: str, parts: list[_Value], record_sizes: Mapping[str, int]) -> _Value:
    if instruction in ('SETITEM', 'SETITEMS') and not all(map(_is_key, parts[1::2])):
        raise UnreadableError('a key of a dictionary in it is neither a string nor a short number')
    if instruction == 'BUILD' and parts[0].maker not in HAVE_STATE:
        raise UnreadableError(f'it changes a value of {one_line(str(parts[0].maker))}')
    if instruction in ('APPEND', 'APPENDS', 'SETITEM', 'SETITEMS', 'BUILD'):
        return parts[0].add(parts[1:])
    if instruction in ('REDUCE', 'NEWOBJ'):
        return _Value(maker=parts[0].content).add(parts)
    if instruction == 'BINPERSID':
        match parts[0].content:
            case ('storage', str(kind), str(key), str(), int(length)) if (
                key.isascii() and length * STORAGES.get(kind, -1) == record_sizes.get(f'data/{key}')
            ):
                return _Value().add(parts)
        raise UnreadableError('it is damaged: a storage is not as large as its record')
    return _Value(tuple(part.content for part in parts)).add(parts)


def _unsafe(name: str) -> UnreadableError:
    return UnreadableError(
        f'it needs more than weights ({one_line(name)}), which could run any code; if you trust '
        'its source, pass --trust-checkpoint (trusted=True in init_cfg)'
    )


def _is_key(value: _Value) -> bool:
    if isinstance(value.content, int):
        return value.content.bit_length() <= MAX_BITS
    return isinstance(value.content, (str, float))


def _tensor(storage: Any, offset: int, size: tuple, stride: tuple, *rest: Any) -> Tensor:
    """Restore a tensor without the hooks that a file may give it."""
    untyped = storage._untyped_storage
    dtype = next((value for value in rest if isinstance(value, torch.dtype)), storage.dtype)
    # With a stride of 0, a tensor could be larger than any memory.
    if math.prod(size) * dtype.itemsize > untyped.nbytes():
        raise UnreadableError('it is damaged: a tensor is larger than its storage')
    return torch.empty(0, dtype=dtype, device=untyped.device).set_(untyped, offset, size, stride)


class _DType:
    """The dtype of numbers or strings; an array of objects would take numbers for addresses."""

    def __init__(self, code: str, *flags: bool) -> None:
        if not DTYPE.fullmatch(code):
            raise _unsafe(f'numpy.dtype {code}')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])  # the rest describes other dtypes


class _Array(np.ndarray):
    """An array of numbers or strings, which is saved as any other array."""

    def __new__(cls, *args: Any) -> '_Array':
        return super().__new__(cls, (0,), 'b')

    def __setstate__(self, state: tuple) -> None:
        _version, shape, kind, is_fortran, content = state
        np.ndarray(shape, kind.dtype, content)  # raises if the content is too short
        super().__setstate__((1, shape, kind.dtype, is_fortran, content))

    def __reduce_ex__(self, protocol: int) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def _scalar(kind: _DType, content: bytes) -> np.generic:
    return np.ndarray((), kind.dtype, content)[()]


class _History(HistoryBuffer):
    """A history of logged values; mmengine's takes methods for all histories from the file."""

    def __setstate__(self, state: dict) -> None:
        self.__init__(state['_log_history'], state['_count_history'], state['max_length'])
        self.__class__ = HistoryBuffer


# What restores a value, by its name in the pickle. NumPy 2 moved the module.
STAND_INS: dict[str, Any] = {
    **{f'torch._utils._rebuild_tensor{version}': _tensor for version in ('', '_v2', '_v3')},
    'torch._utils._rebuild_parameter': lambda data, grad, _: torch.nn.Parameter(data, grad),
    'collections.OrderedDict': lambda: OrderedDict(),
    'collections.Counter': lambda counts: Counter(dict.copy(counts)),
    '_codecs.encode': lambda text, _: text.encode('latin1'),  # bytes; the only encoding of them
    'builtins.bytes': lambda: b'',
    'builtins.getattr': lambda owner, name: None,  # a method of a history, which has it already
    'mmengine.logging.history_buffer.HistoryBuffer': _History,
    'numpy.dtype': _DType,
    'numpy.ndarray': 'numpy.ndarray',  # an argument of _reconstruct, which is never called
    **{f'numpy.{core}.multiarray._reconstruct': _Array for core in ('core', '_core')},
    **{f'numpy.{core}.multiarray.scalar': _scalar for core in ('core', '_core')},
    'argparse.Namespace': argparse.Namespace,  # in the authors' release
}
# What may be given a state after it was made.
HAVE_STATE = {name for name, value in STAND_INS.items() if isinstance(value, type)}
HAVE_STATE |= {'collections.OrderedDict'}
# The bytes of a number in each kind of storage.
STORAGES = {'torch.storage.UntypedStorage': 1} | {
    f'torch.{name}': dtype.itemsize
    for dtype, name in torch.storage._dtype_to_storage_type_map().items()
}
# What PyTorch itself restores.
TORCH_NAMES = {
    *STORAGES,
    *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
    *('torch.Size', 'torch.device'),
}
