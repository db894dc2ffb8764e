"""Compare a branch of a block in kernels with its plain layers in float64.

A branch is a module whose ``forward`` calls the layers, and whose ``fast`` calls the kernels, with
the arguments (x, *size, draw) and for ``fast`` the dtype of products besides.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from . import relative_error

COUNTER = 'lpi.bn.num_batches_tracked'


def results(
    branch: nn.Module, function: Callable[..., Tensor], x: Tensor, cotangent: Tensor, *args: object
) -> dict[str, Tensor]:
    """Return the output, the buffers and all gradients by name, in float64."""
    branch.zero_grad()
    x = x.clone().requires_grad_()
    y = function(x, *args)
    y.backward(cotangent.to(y.dtype))
    gradients = {name: p.grad for name, p in branch.named_parameters()}
    named = dict(output=y.detach(), x=x.grad, **dict(branch.named_buffers()), **gradients)
    return {name: value.double() for name, value in named.items()}


def exact_results(branch: nn.Module, x: Tensor, cotangent: Tensor, *args: object):
    exact = deepcopy(branch).double()
    return results(exact, exact, x.double(), cotangent, *args)


def assert_close(
    values: dict[str, Tensor], expected: dict[str, Tensor], bound: float = 3e-6
) -> None:
    """Compare each value by the norm of its error; the counter of batches must be equal."""
    for name, value in expected.items():
        error = relative_error(values[name], value)
        assert values[name].equal(value) if name == COUNTER else error < bound, (name, error)


def check(
    branch: nn.Module, x: Tensor, *args: object, bound: float = 3e-6, as_layers: bool = False
) -> None:
    """With ``as_layers``, errors may be as large as the largest of the plain layers."""
    cotangent = torch.randn_like(x)
    expected = exact_results(branch, x, cotangent, *args)
    if as_layers:
        plain = deepcopy(branch)
        values = results(plain, plain, x, cotangent, *args)
        values.pop(COUNTER, None)
        bound = max(bound, *(relative_error(v, expected[name]) for name, v in values.items()))
    assert_close(results(branch, branch.fast, x, cotangent, *args), expected, bound)


def check_float16(branch: nn.Module, x: Tensor, *size: int) -> None:
    """The errors with products in float16 are not larger than the errors of the layers."""
    cotangent = torch.randn_like(x)
    expected = exact_results(branch, x, cotangent, *size)
    plain, fast = deepcopy(branch), deepcopy(branch)
    with torch.autocast('cpu', torch.float16):
        of_layers = results(plain, plain, x, cotangent, *size)
    of_kernels = results(fast, fast.fast, x, cotangent, *size, None, torch.float16)
    for values in (expected, of_layers, of_kernels):
        values['output'] -= x
        values.pop(COUNTER, None)
    for name, value in expected.items():
        error, bound = (relative_error(v[name], value) for v in (of_kernels, of_layers))
        assert error <= 1.05 * bound, name
