"""Gradients of an operator that is written in differentiable PyTorch."""

from collections.abc import Callable, Sequence
from functools import wraps

import torch
from torch import Tensor

from ..base.errors import UserError


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


def once_differentiable(backward: Callable[..., None]) -> Callable[..., None]:
    """Refuse second derivatives. They would be wrong, as the tensors of ``backward`` have no graph.

    Most autograd functions of mmcv refuse them. This is for those that do not.
    """

    @wraps(backward)
    def refuse_second(*args: object, **kwargs: object) -> None:
        if torch.is_grad_enabled():
            name = backward.__name__.removesuffix('_backward')
            raise UserError(
                f'{name} of mmcv has no second derivative: compute its gradient without '
                'create_graph=True'
            )
        backward(*args, **kwargs)

    return refuse_second


def at_least_float32(*tensors: Tensor) -> list[Tensor]:
    """Widen tensors of 16 bits, which some operators of torchvision and PyTorch do not support."""
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
