"""Pickles of numbers, text, lists, dicts and arrays, read without running code from them.

The ground truth of the revisited benchmarks is such a pickle. Python's unpickler would call any
function that a pickle names. Even without names, a pickle can make it exhaust the memory or
overflow the stack. This reader supports only the few instructions that such values need, and
refuses all others.
"""

import pickletools
from typing import Any

from ...network.weights.pickles import EMPTY_ARRAYS, VALIDATED, UnreadableError, UnsafeClassError

# Functions that create NumPy arrays and numbers, and Python's bytes in protocols up to 2.
MAKERS = {
    name: make
    for name, make in VALIDATED.items()
    if name in ('_codecs.encode', 'builtins.bytes', 'numpy.dtype', *EMPTY_ARRAYS)
    or name.endswith('.scalar')
}
ARRAY = 'numpy.ndarray'  # an argument of the functions that create arrays; never called
RESTORED = tuple({VALIDATED['numpy.dtype'], VALIDATED[ARRAY]})
MAX_BITS = 64  # per integer
MAX_DEPTH = 16  # levels of nested values
# Limit on the number of values: ROOM, plus GROWTH for each byte of the pickle. A value that is used
# several times counts each time.
ROOM, GROWTH = 2**20, 64
CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}
TUPLES = {'EMPTY_TUPLE': 0, 'TUPLE1': 1, 'TUPLE2': 2, 'TUPLE3': 3}
NUMBERS = 'INT', 'BININT', 'BININT1', 'BININT2', 'LONG', 'LONG1', 'FLOAT', 'BINFLOAT'
TEXTS = 'UNICODE', 'BINUNICODE', 'SHORT_BINUNICODE', 'STRING', 'BINSTRING', 'SHORT_BINSTRING'
BYTES = 'BINBYTES', 'SHORT_BINBYTES'
VALUES = {*NUMBERS, *TEXTS, *BYTES}
PUTS, GETS = {'PUT', 'BINPUT', 'LONG_BINPUT'}, {'GET', 'BINGET', 'LONG_BINGET'}
IGNORED = {'PROTO', 'FRAME', 'STOP'}


class _Name:
    """A class or function that a pickle names."""

    def __init__(self, name: str) -> None:
        self.name = name


def read_plain(data: bytes) -> Any:
    """Return the value of a pickle of dicts, lists, tuples, text, numbers and arrays of numbers.

    The keys of dicts are text. No value contains itself.

    Raises:
        UnreadableError: If the pickle is damaged or contains anything else. The message is the
            reason, without the file.
    """
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            reader.step(opcode.name, argument)
        (value,) = reader.stack
    except UnsafeClassError as error:
        raise UnreadableError(f'it names {error.name}, which could run code') from None
    except (UnreadableError, MemoryError):
        raise
    except Exception:  # the functions in MAKERS may raise anything for a damaged file
        raise UnreadableError('it is no pickle, or damaged') from None
    _require_small(value, ROOM + GROWTH * len(data))
    return value


def _require_small(value: Any, room: int) -> None:
    """Refuse values that grow without end when copied, such as a list that contains itself."""
    values = [value]
    for _ in range(MAX_DEPTH):
        inner = []
        for outer in values:
            if isinstance(outer, dict | list | tuple):
                room -= len(outer)
                if room < 0:
                    raise UnreadableError('its values repeat each other without end')
                inner += outer.values() if isinstance(outer, dict) else outer
        values = inner
    if values:
        raise UnreadableError(f'its values are nested in more than {MAX_DEPTH} levels')


class _Reader:
    """The stack of a pickle, and the memo of values for later use."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, instruction: str, argument: Any) -> None:
        """Execute an instruction."""
        stack = self.stack
        if instruction in VALUES:
            if type(argument) is int and argument.bit_length() > MAX_BITS:
                raise UnreadableError(f'it has an integer of more than {MAX_BITS} bits')
            stack.append(argument)
        elif instruction in CONSTANTS:
            stack.append(CONSTANTS[instruction])
        elif instruction in PUTS:
            self._memo[argument] = stack[-1]
        elif instruction == 'MEMOIZE':
            self._memo[len(self._memo)] = stack[-1]
        elif instruction in GETS:
            stack.append(self._memo[argument])
        elif instruction == 'MARK':
            self._outer.append(stack)
            self.stack = []
        elif instruction in TUPLES:
            self._combine_last(TUPLES[instruction])
        elif instruction not in IGNORED:
            self._combine(instruction, argument)

    def _combine_last(self, count: int) -> None:
        start = len(self.stack) - count
        if start < 0:
            raise UnreadableError('it is damaged')
        self.stack[start:] = [tuple(self.stack[start:])]

    def _marked(self) -> list[Any]:
        """Remove and return the values on the stack above the last mark."""
        values, self.stack = self.stack, self._outer.pop()
        return values

    def _combine(self, instruction: str, argument: Any) -> None:
        match instruction:
            case 'EMPTY_LIST' | 'EMPTY_DICT':
                self.stack.append([] if instruction == 'EMPTY_LIST' else {})
            case 'LIST' | 'TUPLE':
                values = self._marked()
                self.stack.append(values if instruction == 'LIST' else tuple(values))
            case 'DICT':
                values = self._marked()
                self.stack.append(_update({}, values))
            case 'APPEND' | 'APPENDS':
                values = [self.stack.pop()] if instruction == 'APPEND' else self._marked()
                _require(self.stack[-1], list).extend(values)
            case 'SETITEM':
                value, key = self.stack.pop(), self.stack.pop()
                _update(_require(self.stack[-1], dict), [key, value])
            case 'SETITEMS':
                values = self._marked()
                _update(_require(self.stack[-1], dict), values)
            case 'GLOBAL':
                name = argument.replace(' ', '.').replace('__builtin__.', 'builtins.')
                self.stack.append(_named(name))
            case 'STACK_GLOBAL':
                attribute, module = self.stack.pop(), self.stack.pop()
                self.stack.append(_named(f'{module}.{attribute}'))
            case 'REDUCE':
                arguments, maker = self.stack.pop(), self.stack.pop()
                if type(maker) is not _Name or maker.name not in MAKERS:
                    raise UnreadableError('it is damaged')
                self.stack.append(MAKERS[maker.name](*_require(arguments, tuple)))
            case 'BUILD':
                state = self.stack.pop()
                if not isinstance(self.stack[-1], RESTORED):
                    raise UnreadableError('it is damaged')
                self.stack[-1].__setstate__(_require(state, tuple))
            case _:
                raise UnreadableError(f'it holds more than numbers and text ({instruction})')


def _named(name: str) -> _Name:
    if name not in MAKERS and name != ARRAY:
        raise UnsafeClassError(name)
    return _Name(name)


def _require(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise UnreadableError('it is damaged')
    return value


def _update(target: dict, items: list) -> dict:
    for key, value in zip(items[::2], items[1::2], strict=True):
        # The hash of a tuple of tuples of tuples could overflow the stack.
        target[_require(key, str)] = value
    return target
