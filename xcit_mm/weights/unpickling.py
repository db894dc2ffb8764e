"""Checkpoints are pickles, which can run any code: here they cannot.

``torch.load(weights_only=True)`` runs no code either, but it cannot be given to a hostile file:
it takes a tensor of any size that the file claims, lets 40 bytes take all memory, and with
NumPy's classes allowed, as mmengine's checkpoints need them, takes numbers in the file for
addresses. This unpickler knows nothing but the functions below, which look at what they get, and
is the same on every PyTorch.
"""

import argparse
import io
import math
import pickle
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.utils import digit_version
from torch import Tensor

ALLOWS_BY_NAME = digit_version(torch.__version__) >= digit_version('2.6')
NUMPY = ('numpy._core', 'numpy.core')  # of NumPy 2, of NumPy 1
DTYPES = '?bhilqBHILQefdFDSU'  # NumPy's characters for numbers and strings
DTYPE = re.compile(rf'[{DTYPES}]|[biufcSU]\d{{1,9}}')  # and with a size
SEQUENCES = (list, tuple, set, frozenset)
CONTAINERS = (Mapping, argparse.Namespace, *SEQUENCES)
MAX_DEPTH = 64  # of lists in lists; checkpoints have less than 10
# What a file may ask for beside what is in it: bytes, and bytes for each of its own. Of genuine
# checkpoints the second is below 20.
ROOM = 2**20
GROWTH = 64
OBJECT = 256  # bytes of a small object, roughly
MAX_SIZES = 64  # dimensions, as of NumPy; PyTorch has no more
MAX_KEY = 2**60  # whole numbers up to it have hashes of their own
MAX_NUMBER_KEYS = 2**16  # in a file: an optimizer has one for each tensor
# These look something up or call it in ways of their own, or take memory and time that are not in
# the file: numbers as decimals, of more than 255 bytes, and a buffer of any size.
REFUSED = (
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.PERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER, pickle.BYTEARRAY8),
    *(pickle.INT, pickle.LONG, pickle.LONG4, pickle.PUT, pickle.GET),
)


def load_plain(records: Mapping[str, bytearray], map_location: str | torch.device | None) -> Any:
    """Read the records of a file of ``torch.save`` without running code that is in them.

    Args:
        records: What is in the file, by name.
        map_location: A device; None: the CPU.

    Raises:
        UnpicklingError: If it asks for more than tensors and the plain classes of checkpoints;
            the message has it behind the word GLOBAL, where it has a name. Or if it asks for more
            memory or time than a file of its size needs.
    """
    if 'constants.pkl' in records:
        _refuse('a program of TorchScript')
    if 'data.pkl' not in records:
        raise pickle.UnpicklingError('it is no archive of torch.save')
    if records.get('byteorder', sys.byteorder.encode()).decode() != sys.byteorder:
        raise pickle.UnpicklingError('it is of a machine with another order of bytes')
    content = _PlainUnpickler(records, map_location or 'cpu').load()
    _require_bounded(content, ROOM + GROWTH * sum(map(len, records.values())))
    return content


def allow_plain_classes() -> None:
    """Let any ``torch.load(weights_only=True)`` read what checkpoints hold beside tensors.

    It is the default since PyTorch 2.6, and mmengine 0.10.7 cannot read its own files with it.
    """
    if not ALLOWS_BY_NAME:
        return
    allowed: dict[str, Any] = {
        'argparse.Namespace': argparse.Namespace,
        'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer,
        'builtins.getattr': _history_method,
        'numpy.ndarray': _Array,
        'numpy.dtype': np.dtype,
    }
    for package in NUMPY:
        allowed[f'{package}.multiarray._reconstruct'] = np.array(0).__reduce__()[0]
        allowed[f'{package}.multiarray.scalar'] = np.float64(0).__reduce__()[0]
    for character in DTYPES:
        kind = type(np.dtype(character))
        allowed[f'{kind.__module__}.{kind.__qualname__}'] = kind
    torch.serialization.add_safe_globals([(v, name) for name, v in allowed.items()])


def _refuse(what: str) -> None:
    raise pickle.UnpicklingError(f'GLOBAL {what}')


def _shown(value: object) -> str:
    """A name in an error; the text of a list of lists of the same lists would have no end."""
    return repr(value[:50]) if isinstance(value, str) else f'a {type(value).__name__}'


class _History(HistoryBuffer):
    """A history as a checkpoint restores it.

    mmengine's own takes methods from the file and puts them into the class, for all histories.
    """

    def __new__(cls) -> '_History':
        history = super().__new__(cls)
        history.__init__()
        return history

    def __setstate__(self, state: dict) -> None:
        values, counts = state['_log_history'], state['_count_history']
        max_length = state['max_length']
        if not (_is_numbers(values) and _is_numbers(counts) and len(values) == len(counts)):
            raise pickle.UnpicklingError('a history of logged values is not one')
        if type(max_length) is not int or max_length < 1:
            raise pickle.UnpicklingError('a history of logged values has no length')
        # A copy each: an array is restored in place, and once more if the file says so.
        self._log_history, self._count_history = np.array(values), np.array(counts)
        self.max_length = max_length
        self.__class__ = HistoryBuffer


def _is_numbers(value: object) -> bool:
    return isinstance(value, _Array) and value.ndim == 1 and value.dtype.kind in 'biuf'


def _history_method(owner: object, name: str) -> Any:
    """What getattr may do in a checkpoint: a history refers to its own methods by it."""
    if (owner is not HistoryBuffer and owner is not _History) or name.startswith('_'):
        _refuse(f'builtins.getattr was asked for {_shown(name)}')
    return getattr(HistoryBuffer, name)


class _Array(np.ndarray):
    """An array of numbers or strings as a checkpoint restores it, which cannot be called.

    NumPy's own, called or restored with the dtype of objects, takes bytes for addresses.
    """

    def __new__(cls, *args: object) -> '_Array':
        raise pickle.UnpicklingError('GLOBAL numpy.ndarray is called, which no array needs')

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, fortran, content = state
        shape = _sizes(shape)
        super().__setstate__((1, shape, _checked(dtype, shape, content), fortran, content))

    def __reduce_ex__(self, protocol: int) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)  # into the next checkpoint as any array


def _empty_array(*args: object) -> _Array:
    """NumPy begins so with every array, and sets its shape and content afterwards."""
    return np.ndarray.__new__(_Array, (0,), 'b')


def _scalar(dtype: np.dtype, content: bytes) -> np.generic:
    return np.ndarray((), _checked(dtype, (), content), content)[()]


def _dtype(code: str, *args: object) -> np.dtype:
    if not isinstance(code, str) or not DTYPE.fullmatch(code):
        _refuse(f'numpy.dtype was asked for {_shown(code)}')
    return np.dtype(code, copy=True)  # which is changed afterwards


def _set_byte_order(dtype: np.dtype, state: tuple) -> None:
    _version, byte_order, *structure = state[:5]
    if byte_order not in ('<', '>', '=', '|') or any(part is not None for part in structure):
        _refuse('numpy.dtype of a structure')
    sizes = (dtype.itemsize, dtype.alignment, dtype.flags) if dtype.kind in 'SU' else (-1, -1, 0)
    dtype.__setstate__((3, byte_order, None, None, None, *sizes))


def _checked(dtype: np.dtype, shape: tuple[int, ...], content: bytes) -> np.dtype:
    if dtype.kind not in 'biufcSU' or not isinstance(content, bytes):
        _refuse('an array of objects')
    has_values = dtype.itemsize or math.prod(shape) < 2  # of no bytes there could be any number
    if math.prod(shape) * dtype.itemsize != len(content) or not has_values:
        raise pickle.UnpicklingError('an array is not as large as its content')
    return np.dtype(dtype.str)  # without what torch's unpickler may have added


def _sizes(values: Sequence) -> tuple[int, ...]:
    are_few = isinstance(values, (list, tuple)) and len(values) <= MAX_SIZES
    if not are_few or any(type(value) is not int or not 0 <= value < 2**63 for value in values):
        raise pickle.UnpicklingError('a shape is not made of sizes')
    return tuple(values)


def _tensor(
    storage: Any, offset: int, size: tuple, stride: tuple, *rest: object, dtype: Any = None
) -> Tensor:
    """A tensor within its storage, and no larger.

    One that repeats the same numbers, with a stride of 0, can be larger than any memory once it
    is copied. What else the file says of it (that it needs a gradient, its hooks) is left out.
    """
    (offset,), size, stride = _sizes([offset]), _sizes(size), _sizes(stride)
    if not isinstance(storage, torch.storage.TypedStorage):
        _refuse('a tensor without a storage')
    untyped, dtype = storage._untyped_storage, dtype or storage.dtype
    room = untyped.nbytes() // torch._utils._element_size(dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) > room or (math.prod(size) and last >= room):
        raise pickle.UnpicklingError('a tensor is larger than its storage')
    return torch.empty(0, dtype=dtype, device=untyped.device).set_(untyped, offset, size, stride)


def _tensor_v3(
    storage: Any, offset: int, size: tuple, stride: tuple, grad: object, hooks: object, dtype: Any
) -> Tensor:
    if not isinstance(dtype, torch.dtype):
        _refuse('a tensor of an unknown dtype')
    return _tensor(storage, offset, size, stride, dtype=dtype)


def _parameter(data: Tensor, requires_grad: bool, *rest: object) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, bool(requires_grad) and data.is_floating_point())


def _tensor_with_attributes(function: Callable, kind: type, args: tuple, state: object) -> Tensor:
    if not any(function is allowed for allowed in (_tensor, _tensor_v3, _parameter)):
        _refuse('a tensor of another class')
    return function(*args)


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes, in the way of pickle's protocol 2; other encodings make more of them each time."""
    if encoding not in ('latin1', 'latin-1'):
        _refuse(f'_codecs.encode was asked for {_shown(encoding)}')
    return text.encode('latin-1')


def _no_bytes() -> bytes:
    """Those of an empty array, in the same way."""
    return b''


def _ordered(items: Sequence = ()) -> OrderedDict:
    _require(items, list, tuple)
    return OrderedDict(items)


def _counted(counts: dict) -> Counter:
    _require(counts, dict)
    return Counter(counts)


def _set(items: Sequence = ()) -> set:
    _require(items, list, tuple)
    return set(items)


def _size(values: Sequence) -> torch.Size:
    return torch.Size(_sizes(values))


CALLED = {
    'torch._utils._rebuild_tensor': _tensor,
    'torch._utils._rebuild_tensor_v2': _tensor,
    'torch._utils._rebuild_tensor_v3': _tensor_v3,
    'torch._utils._rebuild_parameter': _parameter,
    'torch._utils._rebuild_parameter_with_state': _parameter,
    'torch._tensor._rebuild_from_type_v2': _tensor_with_attributes,
    'torch.Size': _size,
    'torch.device': torch.device,
    '_codecs.encode': _encoded,
    'builtins.bytes': _no_bytes,
    'collections.OrderedDict': _ordered,
    'collections.Counter': _counted,
    'builtins.set': _set,
    'builtins.getattr': _history_method,
    'numpy.dtype': _dtype,
    **{f'{package}.multiarray._reconstruct': _empty_array for package in NUMPY},
    **{f'{package}.multiarray.scalar': _scalar for package in NUMPY},
}
# mmengine's files hold the history of the logged values, those of the authors' release an
# argparse.Namespace.
CREATED = {
    'argparse.Namespace': argparse.Namespace,
    'mmengine.logging.history_buffer.HistoryBuffer': _History,
}
NAMED = {
    'numpy.ndarray': _Array,
    'torch.Tensor': Tensor,
    'torch.storage.UntypedStorage': torch.UntypedStorage,
    'torch.nn.parameter.Parameter': torch.nn.Parameter,
} | {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
# Torch's names for a storage of numbers of a kind.
STORAGES = {
    f'{name}Storage': SimpleNamespace(dtype=dtype)
    for name, dtype in dict(
        Double=torch.float64,
        Float=torch.float32,
        Half=torch.float16,
        BFloat16=torch.bfloat16,
        Long=torch.int64,
        Int=torch.int32,
        Short=torch.int16,
        Char=torch.int8,
        Byte=torch.uint8,
        Bool=torch.bool,
        ComplexFloat=torch.complex64,
        ComplexDouble=torch.complex128,
    ).items()
}
ALLOWED = CALLED | CREATED | NAMED  # by the names that files call them


def _require(value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise pickle.UnpicklingError(
            f'a {type(value).__name__} stands where a {kinds[0].__name__} is needed'
        )


def _size_of(value: object) -> int:
    """Bytes that a copy of a value takes, without the values in it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.nbytes
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (Mapping, *SEQUENCES)):
        return sys.getsizeof(value)
    return 0


class _PlainUnpickler(pickle._Unpickler):
    """Python's unpickler, where what a file may do is a table, which its version in C is not.

    What the file has copied, such as a text that it names once and encodes a thousand times, is
    limited by its own size; what it writes out is limited by it anyway.

    Args:
        records: Of the archive, by name.
        device: Where its tensors go.
    """

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, records: Mapping[str, bytearray], device: str | torch.device) -> None:
        super().__init__(io.BytesIO(records['data.pkl']), encoding='utf-8')
        self._records = records
        self._device = device
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._room = ROOM + GROWTH * len(records['data.pkl'])
        self._num_number_keys = 0

    def find_class(self, module: str, name: str) -> Any:
        if module == 'torch' and name in STORAGES:
            return STORAGES[name]
        full_name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')  # of protocol 2
        if full_name not in ALLOWED:
            _refuse(f'{full_name} is not allowed')
        return ALLOWED[full_name]

    def load_reduce(self) -> None:
        args = self.stack.pop()
        function = self.stack.pop()
        if not any(function is allowed for allowed in CALLED.values()):
            _refuse('a call of what is no function')
        _require(args, tuple)
        self._charge(OBJECT, *args)
        if args and function is _ordered:
            self._require_names([name for name, _ in args[0]])
        elif args and function in (_counted, _set):
            self._require_names(args[0])
        value = function(*args)
        self._charge(0, value)
        self.append(value)

    def load_newobj(self) -> None:
        args = self.stack.pop()
        kind = self.stack.pop()
        if not any(kind is allowed for allowed in CREATED.values()) or args != ():
            _refuse('an object of what is no class')
        self._charge(OBJECT)
        self.append(kind.__new__(kind))

    def load_build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        self._charge(OBJECT, state)
        if isinstance(value, _Array):
            _require(state, tuple)
            self._charge(0, *state)
            value.__setstate__(state)
        elif isinstance(value, _History):
            _require(state, dict)
            self._charge(0, *state.values())
            value.__setstate__(state)
        elif isinstance(value, np.dtype):
            _require(state, tuple)
            _set_byte_order(value, state)
        elif isinstance(value, argparse.Namespace):
            _require(state, dict)
            vars(value).update(state)
        elif isinstance(value, OrderedDict):
            _require(state, dict)
            # Torch's note on the versions of modules. Anything else could hide a method.
            if '_metadata' in state:
                vars(value)['_metadata'] = state['_metadata']
        else:
            _refuse(f'a {type(value).__name__} that is changed')

    def load_binpersid(self) -> None:
        storage = self.stack.pop()
        if not isinstance(storage, tuple) or storage[:1] != ('storage',):
            _refuse('a reference that is no storage')
        kind, key, location, num_elements = storage[1:]
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        (num_bytes,) = _sizes([num_elements * torch._utils._element_size(dtype)])
        self._charge(OBJECT, key)
        content = self._records.get(f'data/{key}') if isinstance(key, str) else None
        if not isinstance(location, str) or content is None or num_bytes != len(content):
            raise pickle.UnpicklingError(f'the storage {_shown(key)} is not as large as said')
        if key not in self._storages:
            values = torch.empty(0, dtype=torch.uint8)  # of no bytes there is no buffer
            if content:
                values = torch.frombuffer(content, dtype=torch.uint8)
            self._storages[key] = values.to(self._device).untyped_storage()
        self.append(
            torch.storage.TypedStorage(
                wrap_storage=self._storages[key], dtype=dtype, _internal=True
            )
        )

    def load_append(self) -> None:
        _require(self.stack[-2], list)
        super().load_append()

    def load_appends(self) -> None:
        _require(self.metastack[-1][-1], list)
        super().load_appends()

    def load_setitem(self) -> None:
        _require(self.stack[-3], dict)
        self._require_names(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _require(self.metastack[-1][-1], dict)
        self._require_names(self.stack[::2])
        super().load_setitems()

    def load_additems(self) -> None:
        _require(self.metastack[-1][-1], set)
        self._require_names(self.stack)
        super().load_additems()

    def load_dict(self) -> None:
        self._require_names(self.stack[::2])
        super().load_dict()

    def load_empty_set(self) -> None:
        self._charge(OBJECT)
        super().load_empty_set()

    def load_frozenset(self) -> None:
        self._charge(OBJECT)
        self._require_names(self.stack)
        super().load_frozenset()

    def load_binput(self) -> None:
        self._memoize(self.read(1)[0])

    def load_long_binput(self) -> None:
        self._memoize(int.from_bytes(self.read(4), 'little'))

    def _memoize(self, number: int) -> None:
        """Under numbers that count up, as every pickler gives them; others may collide."""
        if number > len(self.memo):
            raise pickle.UnpicklingError('its values are not numbered one by one')
        self.memo[number] = self.stack[-1]

    def _charge(self, num_bytes: int, *copied: object) -> None:
        self._room -= num_bytes + sum(map(_size_of, copied))
        if self._room < 0:
            raise pickle.UnpicklingError('it asks for more memory than a file of its size needs')

    def _require_names(self, names: Iterable) -> None:
        """Texts, or a number of numbers.

        The hash of tuples in tuples may not end, or end the process. Numbers can be chosen such
        that their hashes collide, which takes the square of the time. Texts, whose hashes are
        drawn by chance, can only be long.
        """
        for name in names:
            if isinstance(name, Real) and -MAX_KEY < name < MAX_KEY:
                self._num_number_keys += 1
            elif name is not None and not isinstance(name, (str, bytes)):
                raise pickle.UnpicklingError('a name is neither a text nor a small number')
            self._charge(0, name)
        if self._num_number_keys > MAX_NUMBER_KEYS:
            raise pickle.UnpicklingError(f'more than {MAX_NUMBER_KEYS} of its names are numbers')

    def load_refused(self) -> None:
        _refuse('an instruction that no weights need')

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BINPERSID[0]] = load_binpersid
    dispatch[pickle.APPEND[0]] = load_append
    dispatch[pickle.APPENDS[0]] = load_appends
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.EMPTY_SET[0]] = load_empty_set
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.BINPUT[0]] = load_binput
    dispatch[pickle.LONG_BINPUT[0]] = load_long_binput
    dispatch |= dict.fromkeys((opcode[0] for opcode in REFUSED), load_refused)


def _require_bounded(content: Any, max_size: int) -> None:
    """Refuse what contains itself, or would be large or deep where it is copied or written out.

    A list of the same list twice, in such a list again, and so on, takes little memory; most
    functions that walk through it would never end.

    Raises:
        UnpicklingError: If it is.
    """
    measured: dict[int, tuple[int, int]] = {}  # depth and bytes, by id
    begun: set[int] = set()
    todo = [content]
    while todo:
        value = todo[-1]
        if id(value) in measured:
            todo.pop()
            continue
        parts = _parts_of(value)
        inner = [part for part in parts if isinstance(part, CONTAINERS)]
        if id(value) not in begun:
            begun.add(id(value))
            todo += {id(p): p for p in inner if id(p) not in measured}.values()
            if any(id(p) in begun and id(p) not in measured for p in inner):
                raise pickle.UnpicklingError('its values contain themselves')
            continue
        depth = 1 + max((measured[id(part)][0] for part in inner), default=0)
        inner_sizes = (
            measured[id(part)][1] if id(part) in measured else _size_of_leaf(part) for part in parts
        )
        size = _size_of(value) + sum(inner_sizes)
        if depth > MAX_DEPTH:
            raise pickle.UnpicklingError(f'its values are nested more than {MAX_DEPTH} times')
        if size > max_size:
            raise pickle.UnpicklingError('its values repeat one another without end')
        measured[id(value)] = depth, size
        todo.pop()


def _parts_of(value: Any) -> list[Any]:
    parts = [*value] if isinstance(value, (Mapping, *SEQUENCES)) else []
    if isinstance(value, Mapping):
        parts += value.values()
    if isinstance(value, (OrderedDict, argparse.Namespace)):
        parts += vars(value).values()
    return parts


def _size_of_leaf(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, HistoryBuffer):
        return sum(part.nbytes for part in value.data)
    return _size_of(value)
