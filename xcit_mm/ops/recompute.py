"""Computing again in the backward pass instead of keeping."""

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
    """``function(*args)``, which keeps its arguments alone for the backward pass.

    The recomputation ends where the last operation's inputs are there: when ``function`` ends
    in a convolution or a matrix product, that is not computed twice.

    Args:
        function: What is computed twice, except for its last operation.
        args: Its arguments.
        within: The module whose BatchNorm layers take part: the second pass normalises by the
            statistics of the batch again but must not count them again, or the running
            statistics would depend on the recomputation.
        random: Whether ``function`` draws random numbers, which are to be the same twice.

    Without a gradient it is ``function(*args)``.
    """
    if not torch.is_grad_enabled() or is_captured():
        return function(*args)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=random,
        context_fn=lambda: (nullcontext(), _UncountedStatistics(within)),
    )


class _UncountedStatistics(AbstractContextManager):
    """The BatchNorm layers of a module leave their running statistics as they are.

    Unlike a context made by ``contextmanager`` it can be entered again: each backward pass through
    the same graph (``retain_graph=True``) computes again what was not kept.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        norms = [
            m
            for m in self._module.modules()
            if isinstance(m, _BatchNorm) and m.training and m.track_running_stats
        ]
        self._before = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
        for norm in norms:
            norm.momentum = 0.0

    def __exit__(self, *error: object) -> None:
        for norm, momentum, num_batches in self._before:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(num_batches)
