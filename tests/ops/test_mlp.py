"""The MLP operator against its plain composition."""

import pytest
import torch
from helpers import held_bytes, relative_error
from torch import Tensor
from torch.nn import functional as F

from xcit_mm.ops.mlp import CPU_CHUNK, mlp


def parameters(C: int) -> list[Tensor]:
    shapes = [(4 * C, C), (4 * C,), (C, 4 * C), (C,)]
    return [(torch.randn(shape) * 0.3).requires_grad_() for shape in shapes]


def plain(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


@pytest.mark.parametrize('shape', [(1, 1, 8), (2, CPU_CHUNK - 3, 8), (1, 2 * CPU_CHUNK, 8)])
def test_it_equals_the_plain_composition(shape):
    x, params = torch.randn(shape, requires_grad=True), parameters(8)
    cotangent = torch.randn(shape)
    value, wanted = mlp(x, *params), plain(x, *params)
    assert relative_error(value, wanted) <= 1e-6
    gradients = torch.autograd.grad(value, [x, *params], cotangent)
    expected = torch.autograd.grad(wanted, [x, *params], cotangent)
    for a, b in zip(gradients, expected, strict=True):
        assert relative_error(a, b) <= 1e-5
    with torch.no_grad():
        assert relative_error(mlp(x, *params), wanted) <= 1e-6


@pytest.mark.parametrize('trained', range(5))
def test_a_tensor_alone_may_be_trained(trained):
    inputs = [torch.randn(1, 20, 8), *(p.detach() for p in parameters(8))]
    inputs[trained].requires_grad_()
    (gradient,) = torch.autograd.grad(mlp(*inputs).square().sum(), inputs[trained])
    (expected,) = torch.autograd.grad(plain(*inputs).square().sum(), inputs[trained])
    assert relative_error(gradient, expected) <= 1e-5


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_takes_its_dtype_and_gradients_keep_theirs(dtype):
    x, params = torch.randn(2, 50, 16, requires_grad=True), parameters(16)
    with torch.autocast('cpu', dtype):
        y, wanted = mlp(x, *params), plain(x, *params)
    assert y.dtype == wanted.dtype == dtype
    assert relative_error(y.float(), wanted.float()) <= 4e-3
    gradients = torch.autograd.grad(y.float().sum(), [x, *params])
    exact = torch.autograd.grad(plain(x, *params).sum(), [x, *params])
    for a, b in zip(gradients, exact, strict=True):
        assert a.dtype == torch.float32
        assert relative_error(a, b) <= (2e-2 if dtype == torch.bfloat16 else 2e-3)


def test_it_keeps_the_output_of_its_first_layer_alone():
    x, params = torch.randn(1, 4000, 32, requires_grad=True), parameters(32)
    unit = x.numel() * x.element_size()
    assert held_bytes(lambda: mlp(x, *params)) <= 5.1 * unit  # that, and its own output
    assert held_bytes(lambda: plain(x, *params)) >= 9 * unit
