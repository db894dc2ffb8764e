"""Recomputation in the backward pass, which saves memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .tracing import is_recorded, is_traced, is_transformed, replaced_tensors, without_transforms


def recompute(
    function: Callable[..., Tensor], *args: Any, within: nn.Module, random: bool = False
) -> Tensor:
    """Return ``function(*args)`` and keep only the arguments for the backward pass.

    The backward pass calls ``function`` again, up to the inputs of its last operation. It updates
    the statistics of the BatchNorm layers in ``within`` only once, and draws the same random
    numbers again if ``random``, unless a CUDA graph is recorded. Under a transform, which does not
    support this, nothing is recomputed.
    """
    if not torch.is_grad_enabled() or is_traced() or is_transformed():
        return function(*args)
    second = _SecondPass(within)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=random and not is_recorded(),
        context_fn=lambda: (nullcontext(), second),
    )


class _SecondPass(AbstractContextManager):
    """A reusable context in which a module computes as it did when the context was created.

    It uses the parameters of the forward pass: ``torch.func.functional_call`` replaces them only
    there. No transform is active: there was none in the forward pass, but there may be one around
    the backward pass. BatchNorm does not update its running statistics.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = _tensors(module)

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(without_transforms())
            now = _tensors(self._module)
            other = {k: t for k, t in self._tensors.items() if _is_other(t, now.get(k))}
            stack.enter_context(replaced_tensors(self._module, other))
            for norm in self._module.modules():
                if isinstance(norm, _BatchNorm) and norm.training and norm.track_running_stats:
                    stack.callback(setattr, norm, 'momentum', norm.momentum)
                    count = norm.num_batches_tracked
                    stack.callback(count.copy_, count.clone())
                    norm.momentum = 0.0
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)


def _is_other(then: Tensor, now: Tensor | None) -> bool:
    """Return whether a tensor was replaced, except for a parameter that FSDP has gathered."""
    is_gathered = isinstance(then, nn.Parameter) and type(then) is not type(now)
    return then is not now and not is_gathered


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(chain(module.named_parameters(), module.named_buffers()))
