"""Pickles of plain values, read without Python's unpickler, which can run any code."""

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..weights.pickles import EMPTY_ARRAYS, MAX_BITS, NUMPY, VALIDATED, UnreadableError

# What restores arrays and scalars. Each validates its arguments.
NAMES = {*EMPTY_ARRAYS, 'numpy.dtype', '_codecs.encode'} | {f'{module}.scalar' for module in NUMPY}
INTEGERS = 'BININT', 'BININT1', 'BININT2', 'INT', 'LONG', 'LONG1', 'LONG4'
CONSTANTS = 'BINFLOAT', 'FLOAT', 'NONE', 'NEWTRUE', 'NEWFALSE'
TEXTS = 'BINUNICODE', 'SHORT_BINUNICODE', 'BINUNICODE8', 'UNICODE'
BYTES = 'BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8'
OLD_STRINGS = 'STRING', 'BINSTRING', 'SHORT_BINSTRING'  # of Python 2
PUTS = 'PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'
GETS = 'GET', 'BINGET', 'LONG_BINGET'
TUPLES = {'TUPLE1': 1, 'TUPLE2': 2, 'TUPLE3': 3}
PLAIN = str, bytes, int, float, bool, type(None)
EMPTY: dict[str, Callable[[], Any]] = dict(EMPTY_DICT=dict, EMPTY_LIST=list, EMPTY_TUPLE=tuple)


class _Name(str):
    """The name of a function in a pickle, which is no text."""


def read_plain(data: bytes) -> Any:
    """Return the value of a pickle of dicts, lists, tuples, texts, numbers and NumPy arrays.

    Keys are texts. Nothing else is built and no code of the file is run.

    Raises:
        UnreadableError: If the pickle needs anything else, or is damaged.
    """
    try:
        value = _Machine().run(data)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, MemoryError) as e:
        raise UnreadableError(f'it is damaged ({type(e).__name__})') from None
    _require_plain(value)
    return value


def _require_plain(value: Any) -> None:
    """Refuse a value that holds what is only there to restore arrays."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:  # values may repeat each other
            continue
        seen.add(id(value))
        if type(value) is dict:
            waiting += value.values()
        elif type(value) in (list, tuple):
            waiting += value
        elif not (type(value) in PLAIN or isinstance(value, (np.ndarray, np.generic))):
            raise UnreadableError('it is damaged: it holds the name of a function')


class _Machine:
    """The part of the pickle machine that plain values need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == 'STOP':
                (value,) = self.stack
                return value
            self.step(opcode.name, argument)
        raise UnreadableError('it is damaged: it has no end')

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in INTEGERS:
            if argument.bit_length() > MAX_BITS:
                raise UnreadableError(f'it has an integer of more than {MAX_BITS} bits')
            stack.append(argument)
        elif name in (*CONSTANTS, *TEXTS, *BYTES, *OLD_STRINGS):
            constants = dict(NONE=None, NEWTRUE=True, NEWFALSE=False)
            stack.append(constants.get(name, argument))
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in PUTS:
            self.memo[len(self.memo) if name == 'MEMOIZE' else argument] = stack[-1]
        elif name in GETS:
            stack.append(self.memo[argument])
        elif name == 'MARK':
            self.outer.append(stack)
            self.stack = []
        elif name in TUPLES:
            count = TUPLES[name]
            if len(stack) < count:
                raise IndexError
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ('TUPLE', 'LIST', 'DICT'):
            values = self.marked()
            kinds = dict(TUPLE=tuple, LIST=list, DICT=self.pairs)
            self.stack.append(kinds[name](values))
        elif name in ('APPEND', 'APPENDS'):
            values = [stack.pop()] if name == 'APPEND' else self.marked()
            self.last(list).extend(values)
        elif name in ('SETITEM', 'SETITEMS'):
            values = [stack.pop(-2), stack.pop()] if name == 'SETITEM' else self.marked()
            self.last(dict).update(self.pairs(values))
        elif name == 'GLOBAL':
            stack.append(_allowed(argument.replace(' ', '.')))
        elif name == 'STACK_GLOBAL':
            stack[-2:] = [_allowed('.'.join(stack[-2:]))]
        elif name == 'REDUCE':
            arguments, function = stack.pop(), stack.pop()
            if type(function) is not _Name or function not in NAMES:
                raise TypeError
            stack.append(VALIDATED[function](*_with_bytes(function, arguments)))
        elif name == 'BUILD':
            self.build(stack.pop())
        elif name not in ('PROTO', 'FRAME'):
            raise UnreadableError(f'it needs {name}, which plain values do not')

    def marked(self) -> list[Any]:
        """Return the values since the last mark."""
        values, self.stack = self.stack, self.outer.pop()
        return values

    def last(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError
        return self.stack[-1]

    def pairs(self, values: list[Any]) -> dict[str, Any]:
        # Keys that are tuples of tuples of the same tuple would take any time to be hashed.
        if not all(type(key) is str for key in values[::2]):
            raise UnreadableError('it has a key that is no text')
        return dict(zip(values[::2], values[1::2], strict=True))

    def build(self, state: Any) -> None:
        restored = VALIDATED['numpy.ndarray'], VALIDATED['numpy.dtype']
        if type(self.stack[-1]) not in restored:
            raise TypeError
        if type(self.stack[-1]) is restored[0] and type(state[-1]) is str:  # of Python 2
            state = (*state[:-1], state[-1].encode('latin1'))
        self.stack[-1].__setstate__(state)


def _with_bytes(function: str, arguments: tuple) -> tuple:
    """Return the arguments with the content of a scalar as bytes, which is text in Python 2."""
    if function.endswith('.scalar') and type(arguments[1]) is str:
        return arguments[0], arguments[1].encode('latin1')
    return arguments


def _allowed(name: str) -> _Name:
    name = name.replace('__builtin__.', 'builtins.')
    if name not in NAMES and name != 'numpy.ndarray':
        raise UnreadableError(
            f'it needs {name}, but only numbers, texts, lists, dicts and arrays of NumPy are read'
        )
    return _Name(name)
