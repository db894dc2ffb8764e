"""Counts of the operators that a program starts, and of those that wait for the device.

A GPU works while Python starts further operators. An operator whose result decides what Python
does next, such as ``tensor.item()``, waits until the GPU is idle. Both are counted on a CPU, too,
where nothing waits, but would on a GPU.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operators whose result, or the size of it, is needed on the CPU.
WAITING = {
    *('_local_scalar_dense', 'nonzero', 'masked_select', 'equal', 'is_nonzero', 'bincount'),
    *('_unique', '_unique2', 'unique_dim', 'unique_consecutive', 'nms'),
}
INDEXED = {'index', 'index_put', 'index_put_', '_index_put_impl_'}  # they wait for a Boolean index
# Methods that move values to the CPU; between tensors of the CPU they start no operator.
TO_CPU = {Tensor.tolist: 'tolist', Tensor.cpu: 'cpu', Tensor.numpy: 'numpy'}


@dataclass
class Operations:
    """The operators that were started: how often each occurred, and how often it waited."""

    started: Counter[str] = field(default_factory=Counter)  # without views
    waits: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted(
    on_wait: Callable[[str], None] | None = None, on_gpu: bool = False
) -> Iterator[Operations]:
    """Count the operators that this thread starts, forward and backward.

    Args:
        on_wait: Called with the name of each operator that waits, before it is started; what it
            raises ends the program at that place.
        on_gpu: Whether the program runs on a GPU, so that reading tensors of the CPU is no wait.
    """
    operations = Operations()

    def waits(name: str) -> None:
        operations.waits[name] += 1
        if on_wait is not None:
            on_wait(name)

    methods = nullcontext() if on_gpu else _Methods(waits)
    with methods, _Operators(operations.started, waits, on_gpu):
        yield operations


class _Operators(TorchDispatchMode):
    only_observes = True  # the network computes as it would without it

    def __init__(self, started: Counter[str], waits: Callable[[str], None], on_gpu: bool) -> None:
        super().__init__()
        self._started, self._waits, self._on_gpu = started, waits, on_gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view:
            self._started[name] += 1
        if _waits(name, args, kwargs or {}, self._on_gpu):
            self._waits(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in TO_CPU and args[0].device.type == 'cpu':  # from a GPU, it is an operator
            self._waits(TO_CPU[func])
        return func(*args, **(kwargs or {}))


def _waits(name: str, args: tuple, kwargs: dict, on_gpu: bool) -> bool:
    if name in ('_to_copy', 'copy_'):  # to the CPU, or from memory that is not pinned
        source = args[0] if name == '_to_copy' else args[1]
        target = kwargs.get('device') if name == '_to_copy' else args[0].device
        if target is None or torch.device(target).type == source.device.type:
            return False
        return source.device.type != 'cpu' or not source.is_pinned()
    if on_gpu and isinstance(args[0] if args else None, Tensor) and args[0].device.type == 'cpu':
        return False
    if name in INDEXED:  # one value for all places is a masked_fill
        indices = (index for index in args[1] if index is not None)
        is_one_value = name != 'index' and args[2].numel() == 1
        return not is_one_value and any(i.dtype in (torch.bool, torch.uint8) for i in indices)
    if name == 'repeat_interleave':
        return kwargs.get('output_size') is None
    return name in WAITING
