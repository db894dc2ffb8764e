"""The context an operator runs in: autocast, compilers, tracers and transforms.

All private functions of PyTorch that the network needs are imported here: no public function
tells whether a transform is active, suspends it, or replaces parameters of a module for a while.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import _get_current_dispatch_mode

replaced_tensors = _reparametrize_module  # a context in which a module has other tensors


def computed_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast computes with ``x``; without autocast, its own."""
    device = x.device.type
    if x.dtype == torch.float64 or x.is_meta:  # autocast leaves both as they are
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context that disables autocast on the device of ``x``; the meta device has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def is_traced() -> bool:
    """Return whether ``torch.compile``, ``torch.export`` or ``torch.jit.trace`` records operations.

    Operators are then composed of plain operations: the compiler decides what to recompute.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_recorded() -> bool:
    """Return whether the operations are recorded as a CUDA graph, which is replayed later."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_exported() -> bool:
    """Return whether ``torch.export`` records operations, for inputs of any size."""
    return hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()


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


@contextmanager
def without_transforms() -> Iterator[None]:
    """Suspend what :func:`is_transformed` detects."""
    with temporarily_clear_interpreter_stack(), _set_fwd_grad_enabled(False):
        yield


def is_intercepted() -> bool:
    """Return whether a tracer, a transform or a counter intercepts operations.

    The tensors may then have no values.
    """
    if is_traced() or is_transformed():
        return True
    mode = _get_current_dispatch_mode()
    return mode is not None and not getattr(mode, 'only_observes', False)
