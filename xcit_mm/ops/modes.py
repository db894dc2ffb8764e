"""In which dtype, and for whom, an operator computes."""

import torch
from torch import Tensor


def computed_dtype(x: Tensor) -> torch.dtype:
    """That of autocast on the device of ``x`` where it is enabled, else that of ``x``."""
    device = x.device.type
    if hasattr(torch, 'get_autocast_dtype'):  # PyTorch 2.4 and later
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if device == 'cpu':
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else x.dtype
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else x.dtype


def is_captured() -> bool:
    """Whether a graph is being made of the operations, to be compiled, exported or counted.

    Operators then show their plain composition: what to compute anew, and in which pieces,
    is for the compiler to decide.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
