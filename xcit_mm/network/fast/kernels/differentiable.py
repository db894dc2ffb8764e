"""Gradients that are computed with PyTorch operators, and can be differentiated again.

The kernels compute first derivatives only. A backward pass with ``create_graph=True`` repeats their
forward computation in float32 with PyTorch operators, and differentiates it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..tracing import without_autocast


def asks_for_second(dy: Tensor | None, *grads: Tensor | None) -> bool:
    """Return whether a gradient will be differentiated, or is part of a second derivative.

    Args:
        dy: The gradient of the output, None if nothing depends on it.
        grads: The gradients of outputs that were returned only for second derivatives.
    """
    return torch.is_grad_enabled() or dy is None or any(grad is not None for grad in grads)


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradient of each input; None for one that requires none.

    Args:
        function: A function composed of PyTorch operators. It gets the inputs in float32.
        inputs: Tensors as ``ctx.saved_tensors`` returns them, or None.
        grad: The gradient of what ``function`` returns, in any dtype.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(grad):
        # Aliases, because an input may depend on another one, and that gradient is not wanted here.
        # Not views, whose strides make PyTorch's BatchNorm of one image return wrong gradients.
        inputs = [t if t is None else t[...] for t in inputs]
        y = function(*(t if t is None else t.float() for t in inputs))
        needed = [t for t in inputs if t is not None and t.requires_grad]
        found = torch.autograd.grad(
            y, needed, grad.to(y.dtype), create_graph=create_graph, allow_unused=True
        )
    found = iter(found)
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]


def branch_gradients(
    function: Callable[..., Tensor],
    x_hat: Tensor,
    rstd: Tensor,
    parameters: Sequence[Tensor | None],
    dy: Tensor | None,
    dx_hat: Tensor | None,
    drstd: Tensor | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the gradients of x and of the parameters of a branch, x + function(x_hat, ...).

    Args:
        function: See :func:`gradients`.
        x_hat: The normalized tokens, an output of the autograd function.
        rstd: 1 / deviation of each token, also an output of the autograd function.
        parameters: What ``function`` takes after x_hat.
        dy: Gradient of the branch, None in a second derivative that does not depend on it.
        dx_hat: Gradient of x_hat in a second derivative.
        drstd: Gradient of rstd in a second derivative.

    Shape:
        x_hat, dy, dx_hat: (B, N, C). rstd, drstd: (B, N).
    """
    dy = torch.zeros_like(x_hat) if dy is None else dy
    g, *others = gradients(function, (x_hat, *parameters), dy)
    g, x_hat, rstd = g.float(), x_hat.float(), rstd[..., None]
    if dx_hat is not None:
        g = g + dx_hat
    g = g - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True)
    dx = dy + rstd * g
    if drstd is not None:
        dx = dx - drstd[..., None] * rstd.square() * x_hat / x_hat.shape[-1]
    return dx.to(dy.dtype), others
