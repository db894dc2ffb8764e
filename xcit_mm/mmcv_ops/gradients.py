"""Gradients of an operator that is written in differentiable PyTorch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], grad_output: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs of a function; tensors of 16 bits are widened first.

    mmcv's autograd functions call an operator without a graph, so it is computed again here.
    """
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in at_least_float32(*inputs)]
        output = function(*inputs)
        return torch.autograd.grad(output, inputs, grad_output.to(output.dtype))


def at_least_float32(*tensors: Tensor) -> list[Tensor]:
    """Widen tensors of 16 bits, which some operators of torchvision and PyTorch do not support."""
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
