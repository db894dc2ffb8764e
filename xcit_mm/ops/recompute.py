"""Recomputation in the backward pass instead of memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .tracing import is_captured


def recompute(
    function: Callable[..., Tensor], *args: Any, within: nn.Module, random: bool = False
) -> Tensor:
    """Return ``function(*args)`` and keep only the arguments for the backward pass.

    The backward pass calls ``function`` again, up to the inputs of its last operation. It updates
    the statistics of the BatchNorm layers in ``within`` only once, and draws the same random
    numbers again if ``random``.
    """
    if not torch.is_grad_enabled() or is_captured():
        return function(*args)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=random,
        context_fn=lambda: (nullcontext(), _FrozenStatistics(within)),
    )


class _FrozenStatistics(AbstractContextManager):
    """Context, for several uses, in which BatchNorm does not update its running statistics."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        norms = [m for m in self._module.modules() if isinstance(m, _BatchNorm)]
        norms = [norm for norm in norms if norm.training and norm.track_running_stats]
        self._saved = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
        for norm in norms:
            norm.momentum = 0.0

    def __exit__(self, *error: object) -> None:
        for norm, momentum, num_batches in self._saved:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(num_batches)
