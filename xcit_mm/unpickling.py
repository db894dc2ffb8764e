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
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from tarfile import is_tarfile
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
MAX_DEPTH = 64  # of lists in lists; checkpoints have less than 10
# These look something up or call it in ways of their own, which no values need.
REFUSED = (
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.PERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


def load_plain(
    file: Path,
    map_location: str | torch.device | None,
    records: Mapping[str, bytearray] | None,
) -> Any:
    """Read a file of ``torch.save`` without running code that is in it.

    Args:
        file: The file.
        map_location: A device; None: the CPU.
        records: What is in it, by name; None of a file before PyTorch 1.6, which is no archive.

    Raises:
        UnpicklingError: If it asks for more than tensors and the plain classes of checkpoints;
            the message has it behind the word GLOBAL, where it has a name.
    """
    if records is None:
        content = _load_legacy(file, map_location or 'cpu')
    else:
        content = _load_archive(records, map_location or 'cpu')
    _require_shallow(content)
    return content


def _load_archive(records: Mapping[str, bytearray], device: str | torch.device) -> Any:
    if 'constants.pkl' in records:
        _refuse('a program of TorchScript')
    if 'data.pkl' not in records:
        raise pickle.UnpicklingError('it is no archive of torch.save')
    if records.get('byteorder', sys.byteorder.encode()).decode() != sys.byteorder:
        raise pickle.UnpicklingError('it is of a machine with another order of bytes')

    class Unpickler(_PlainUnpickler):
        record_sizes = {name: len(content) for name, content in records.items()}
        storages: dict[str, torch.UntypedStorage] = {}

        def find_class(self, module: str, name: str) -> Any:
            if module == 'torch' and name in STORAGES:
                return STORAGES[name]
            return super().find_class(module, name)

        def persistent_load(self, storage: tuple) -> torch.storage.TypedStorage:
            _, kind, key, _, _ = storage
            if key not in self.storages:
                content = records[f'data/{key}']
                values = torch.empty(0, dtype=torch.uint8)  # of no bytes there is no buffer
                if content:
                    values = torch.frombuffer(content, dtype=torch.uint8)
                self.storages[key] = values.to(device).untyped_storage()
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            return torch.storage.TypedStorage(
                wrap_storage=self.storages[key], dtype=dtype, _internal=True
            )

    return Unpickler(io.BytesIO(records['data.pkl']), encoding='utf-8').load()


def _load_legacy(file: Path, device: str | torch.device) -> Any:
    if is_tarfile(file):  # torch.load unpacks it
        raise pickle.UnpicklingError('it is a file of before PyTorch 0.4')

    class Unpickler(_PlainUnpickler):
        record_sizes = None
        file_size = file.stat().st_size

    plain_pickle = SimpleNamespace(
        __name__=__name__,
        Unpickler=Unpickler,
        load=lambda stream, **kwargs: _flat(Unpickler(stream, **kwargs).load()),
    )
    return torch.load(file, map_location=device, weights_only=False, pickle_module=plain_pickle)


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
        # A copy each: an array is restored in place, and once more if the file says so.
        values, counts = (np.array(state[name]) for name in ('_log_history', '_count_history'))
        if values.shape != counts.shape or values.ndim != 1 or values.dtype.kind not in 'biuf':
            raise pickle.UnpicklingError('a history of logged values is not one')
        self._log_history, self._count_history = values, counts
        self.max_length = int(state['max_length'])
        self.__class__ = HistoryBuffer


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
    if math.prod(shape) * dtype.itemsize != len(content):
        raise pickle.UnpicklingError('an array is not as large as its content')
    return np.dtype(dtype.str)  # without what torch's unpickler may have added


def _sizes(values: Iterable) -> tuple[int, ...]:
    values = tuple(values)
    if any(type(value) is not int or value < 0 for value in values):
        raise pickle.UnpicklingError('a shape is not made of sizes')
    return values


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


def _flat(values: Any) -> Any:
    """Refuse tuples of tuples as names: the hash of one may not end, or end the process."""
    if isinstance(values, (list, tuple)) and any(isinstance(v, (tuple, frozenset)) for v in values):
        raise pickle.UnpicklingError('a name is made of others')
    return values


def _ordered(items: list = ()) -> OrderedDict:
    _flat([name for name, _ in items])
    return OrderedDict(items)


def _counted(counts: dict) -> Counter:
    if not isinstance(counts, dict):
        _refuse('collections.Counter of what has no counts')
    return Counter(counts)


def _set(items: list = ()) -> set:
    return set(_flat(list(items)))


def _size(values: Iterable) -> torch.Size:
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


class _PlainUnpickler(pickle._Unpickler):
    """Python's unpickler, where what a file may do is a table, which its version in C is not."""

    record_sizes: Mapping[str, int] | None
    file_size: int
    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        full_name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')  # of protocol 2
        if full_name not in ALLOWED:
            _refuse(f'{full_name} is not allowed')
        return ALLOWED[full_name]

    def load_reduce(self) -> None:
        args = self.stack.pop()
        function = self.stack.pop()
        if not any(function is allowed for allowed in CALLED.values()):
            _refuse('a call of what is no function')
        self.append(function(*args))

    def load_newobj(self) -> None:
        args = self.stack.pop()
        kind = self.stack.pop()
        if not any(kind is allowed for allowed in CREATED.values()) or args != ():
            _refuse('an object of what is no class')
        self.append(kind.__new__(kind))

    def load_build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        if isinstance(value, (_Array, _History)):
            value.__setstate__(state)
        elif isinstance(value, np.dtype):
            _set_byte_order(value, state)
        elif isinstance(value, argparse.Namespace):
            vars(value).update(state)
        elif isinstance(value, OrderedDict):
            # Torch's note on the versions of modules. Anything else could hide a method.
            vars(value).update({k: v for k, v in state.items() if k == '_metadata'})
        else:
            _refuse(f'a {type(value).__name__} that is changed')

    def load_binpersid(self) -> None:
        storage = self.stack.pop()
        if not isinstance(storage, tuple) or storage[:1] != ('storage',):
            _refuse('a reference that is no storage')
        kind, key, location, num_elements, *view = storage[1:]
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        (num_bytes,) = _sizes([num_elements * torch._utils._element_size(dtype)])
        if self.record_sizes is not None:
            fits = num_bytes == self.record_sizes.get(f'data/{key}')
        else:
            fits = num_bytes <= self.file_size
        if not (isinstance(key, str) and isinstance(location, str) and fits):
            raise pickle.UnpicklingError(f'the storage {_shown(key)} is not as large as said')
        for part in view:  # of files before PyTorch 1.6
            _flat(part)
        self.append(self.persistent_load(storage))

    def load_append(self) -> None:
        self._require(list, self.stack[-2])
        super().load_append()

    def load_appends(self) -> None:
        self._require(list, self.metastack[-1][-1])
        super().load_appends()

    def load_setitem(self) -> None:
        self._require(dict, self.stack[-3])
        _flat(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._require(dict, self.metastack[-1][-1])
        _flat(self.stack[::2])
        super().load_setitems()

    def load_additems(self) -> None:
        self._require(set, self.metastack[-1][-1])
        _flat(self.stack)
        super().load_additems()

    def load_dict(self) -> None:
        _flat(self.stack[::2])
        super().load_dict()

    def load_frozenset(self) -> None:
        _flat(self.stack)
        super().load_frozenset()

    def _require(self, kind: type, value: object) -> None:
        if not isinstance(value, kind):
            raise pickle.UnpicklingError(
                f'a {type(value).__name__} is filled like a {kind.__name__}'
            )

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
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch |= dict.fromkeys((opcode[0] for opcode in REFUSED), load_refused)


def _require_shallow(content: Any) -> None:
    """Refuse what contains itself, or is nested so deeply that a copy or a log of it fails.

    Raises:
        UnpicklingError: If it is.
    """
    depths: dict[int, int] = {}  # by id; 0 of what is begun, which its own content may not be
    todo = [content]
    while todo:
        value = todo[-1]
        if depths.get(id(value)):
            todo.pop()
            continue
        inner = {id(one): one for one in _containers_in(value)}
        if id(value) not in depths:
            depths[id(value)] = 0
            if any(depths.get(one) == 0 for one in inner):
                raise pickle.UnpicklingError('its values contain themselves')
            todo += [one for key, one in inner.items() if key not in depths]
            continue
        depths[id(todo.pop())] = depth = 1 + max((depths[one] for one in inner), default=0)
        if depth > MAX_DEPTH:
            raise pickle.UnpicklingError(f'its values are nested more than {MAX_DEPTH} times')


def _containers_in(value: Any) -> Iterator[Any]:
    attributes = vars(value) if isinstance(value, (OrderedDict, argparse.Namespace)) else {}
    parts = (value.keys(), value.values()) if isinstance(value, Mapping) else (value,)
    if not isinstance(value, (Mapping, *SEQUENCES)):
        parts = ()
    for part in chain(*parts, attributes.values()):
        if isinstance(part, (Mapping, argparse.Namespace, *SEQUENCES)):
            yield part
