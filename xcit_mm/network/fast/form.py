"""Selects the faster form of a block or a stack of convolutions, if there is one."""

from types import ModuleType

from torch import Tensor, nn

from ..rows import ALONE, Rows
from . import cpu, gpu
from .tracing import is_intercepted
from .unmodified import flat_layers, is_known_block, is_known_stack


def fast_form(module: nn.Module, x: Tensor, rows: Rows) -> ModuleType | None:
    """Return the faster form of a module, :mod:`.cpu` or :mod:`.gpu`, or None to call its layers.

    The layers are called if one of them is modified (LoRA, hooks, quantization), in compiled and
    exported graphs, and under transforms, fake tensors and counters of operations. If the input of
    a block does not hold all rows of an image, :mod:`.cpu` is used on any device.
    """
    if is_intercepted():
        return None
    if not _is_known(module):
        if x.is_cuda:
            gpu.explain_layers(module, x)
        return None
    if rows is not ALONE:
        return None if isinstance(module, nn.Sequential) else cpu
    if x.is_cuda:
        return gpu if gpu.can_compute(module, x) else None
    return cpu


def _is_known(module: nn.Module) -> bool:
    is_stack = isinstance(module, nn.Sequential)
    return is_known_stack(flat_layers(module)) if is_stack else is_known_block(module)
