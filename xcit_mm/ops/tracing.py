"""In which dtype, and for whom, an operator computes."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

if hasattr(torch.compiler, 'is_compiling'):  # PyTorch 2.3 and later
    from torch.compiler import is_compiling
else:
    from torch._dynamo import is_compiling


def computed_dtype(x: Tensor) -> torch.dtype:
    """That of autocast on the device of ``x`` where it is enabled, else that of ``x``."""
    device = x.device.type
    if x.dtype == torch.float64 or x.is_meta:  # which autocast leaves as they are
        return x.dtype
    if hasattr(torch, 'get_autocast_dtype'):  # PyTorch 2.4 and later
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if device == 'cpu':
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else x.dtype
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Operations on the device of ``x`` take their arguments as they are.

    The meta device, on which models are counted, has no autocast.
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def is_captured() -> bool:
    """Whether a graph is being made of the operations, to be compiled, exported or counted.

    Operators then show their plain composition: what to compute anew, and in which pieces,
    is for the compiler to decide.
    """
    return is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Whether the graph that is being made is to hold for sizes other than those of the example."""
    return hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()


def is_intercepted() -> bool:
    """Whether something else sees each operation: fake tensors, vmap, a tracer or a counter.

    Values may then be missing, so that nothing can be decided by them or kept for later.
    """
    return (
        is_captured()
        or _get_current_dispatch_mode() is not None
        or torch._C._are_functorch_transforms_active()
    )
