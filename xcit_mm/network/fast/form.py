"""The only question about faster forms: may one compute a module now, and which?"""

from types import ModuleType

from torch import Tensor, nn

from ..rows import ALONE, Rows
from . import cpu, gpu
from .tracing import is_intercepted
from .unmodified import is_plain


def fast_form(module: nn.Module, x: Tensor, rows: Rows) -> ModuleType | None:
    """Return what computes a module faster, :mod:`.cpu` or :mod:`.gpu`; None for its layers.

    The layers themselves compute if one of them is modified (LoRA, hooks, quantization), in
    compiled and exported graphs, under transforms, fake tensors and counters of operations, and if
    the input does not hold all rows of an image.
    """
    if rows is not ALONE or is_intercepted() or not is_plain(module):
        return None
    if x.is_cuda:
        return gpu if gpu.can_compute(module, x) else None
    return cpu
