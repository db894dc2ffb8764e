"""The context an operator runs in: autocast, compilers, tracers and transforms."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode


def computed_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast computes with ``x``, or that of ``x`` without autocast."""
    device = x.device.type
    if x.dtype == torch.float64 or x.is_meta:  # autocast leaves both as they are
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context that disables autocast on the device of ``x``; the meta device has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def is_captured() -> bool:
    """Return whether the operations are recorded as a graph.

    Operators then show their plain composition: the compiler decides what to recompute.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed() -> bool:
    """Return whether a transform of ``torch.func`` or forward-mode differentiation is active.

    Layers then compute their plain form, because transforms support neither in-place results, nor
    our own autograd functions, nor recomputation in the backward pass.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if torch.compiler.is_compiling():  # a compiler cannot trace what follows
        return False
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def is_intercepted() -> bool:
    """Return whether a tracer, a transform or a counter intercepts operations.

    Values may be missing.
    """
    return is_captured() or is_transformed() or _get_current_dispatch_mode() is not None
