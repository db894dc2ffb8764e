"""The compiled operators of mmcv that a model can call, from the code of its classes."""

import dis
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.autograd import Function

from helpers.zoo.configs import ZooConfig, values

PACKAGES = ('mmcv', 'mmdet', 'mmseg')


def operators(config: ZooConfig) -> set[str]:
    """Build a model and return the functions of ``mmcv._ext`` that it can call.

    They are read from the bytecode of all classes in the model and of the functions that these
    refer to: mmcv calls its extension as ``ext_module.name(...)``. Branches for GPUs also count.
    """
    from mmcv import ops

    try:
        model = config.build('meta')
    except Exception:  # many backbones compute their drop path rates with tensors
        model = config.build()
    pending = _classes(model)
    # batched_nms looks up its kind, as in dict(type='soft_nms'), by name.
    pending |= {getattr(ops, str(name), None) for name in values(config.model, 'type')}
    seen: set[Any] = set()
    names: set[str] = set()
    while pending:
        item = pending.pop()
        seen.add(item)
        called, references = _references(item)
        names |= called
        pending |= references - seen
        if ops.batched_nms in references:
            pending |= {ops.nms} - seen  # its default
    return names


def _classes(model: nn.Module) -> set[Any]:
    """Return the classes of all modules, and of other objects that they hold, such as a sampler."""
    classes = set()
    for module in model.modules():
        for value in (module, *vars(module).values()):
            for item in value if isinstance(value, (list, tuple)) else [value]:
                classes |= {c for c in type(item).__mro__ if _is_of_packages(c)}
    return classes


@cache
def _references(item: Any) -> tuple[set[str], set[Any]]:
    """Return the operators that a class or function calls itself, and the functions it names."""
    members = vars(item).values() if isinstance(item, type) else [item]
    called, references = set(), set()
    for member in members:
        function = inspect.unwrap(getattr(member, '__func__', getattr(member, 'fget', member)))
        if isinstance(function, FunctionType):
            for name, attribute in _globals(function.__code__):
                value = function.__globals__.get(name)
                if name == 'ext_module':
                    called.add(attribute)
                value = getattr(value, '__self__', value)  # roi_align is RoIAlignFunction.apply
                if _is_of_packages(value) and _is_called(value, attribute):
                    references.add(value)
    return called, references


def _globals(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the global names that code loads, and the attributes that it loads from them."""
    instructions = list(dis.get_instructions(code))
    for instruction, following in pairwise(instructions):
        if instruction.opname == 'LOAD_GLOBAL':
            is_attribute = following.opname in ('LOAD_ATTR', 'LOAD_METHOD')
            yield instruction.argval, following.argval if is_attribute else ''
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _is_called(value: Any, attribute: str) -> bool:
    if isinstance(value, type):  # modules are in the model; others, an NPU's path
        return issubclass(value, Function) and attribute in ('', 'apply')
    return callable(value)


def _is_of_packages(value: Any) -> bool:
    return str(getattr(value, '__module__', '')).split('.')[0] in PACKAGES
