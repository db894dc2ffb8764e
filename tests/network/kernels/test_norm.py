import pytest
import torch
import triton
from torch.nn import functional as F

from xcit_mm.network.fast.kernels.norm import (
    normalize,
    normalize_backward,
    normalize_backward_kernel,
    normalize_kernel,
    normalize_with_sums,
)

EPS = 1e-6
SIZES = [(1, 1, 128), (2, 40, 32), (2, 33, 192), (1, 3, 768), (0, 7, 128)]


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The norm of the difference, relative to the norm of the reference."""
    if not reference.numel():
        return 0.0
    return ((value.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize('size', SIZES)
def test_tokens_are_normalized_and_their_sums_are_those_of_what_is_stored(size):
    x = 3 * torch.randn(size) + 1
    exact = F.layer_norm(x.double(), size[2:], eps=EPS)
    centered = x.double() - x.double().mean(2, keepdim=True)
    rstd_exact = (centered.square().mean(2) + EPS).rsqrt()
    for dtype, limit in ((torch.float32, 2e-7), (torch.float16, 3e-4)):
        x_hat, rstd = normalize(x, EPS, dtype)
        assert x_hat.dtype == dtype and rstd.dtype == torch.float32
        assert error(x_hat, exact) < limit and error(rstd, rstd_exact) < 2e-7
        again, same, sums = normalize_with_sums(x, EPS, dtype)
        assert torch.equal(again, x_hat) and torch.equal(same, rstd)
        expected = x_hat.double().sum(1)
        assert (sums.sum(1) - expected).abs().max() < 1e-4 if len(x) else sums.shape[0] == 0


@pytest.mark.parametrize('size', SIZES)
def test_the_gradient_is_that_of_layer_norm(size):
    x = (3 * torch.randn(size, dtype=torch.float64) + 1).requires_grad_()
    g, dy = torch.randn(size), torch.randn(size)
    F.layer_norm(x, size[2:], eps=EPS).backward(g.double())
    x_hat, rstd = normalize(x.detach().float(), EPS, torch.float32)
    assert error(normalize_backward(g, x_hat, rstd, dy), x.grad + dy) < 3e-7
    dx = normalize_backward(64 * g, x_hat, rstd, dy, torch.tensor([1 / 64]))
    assert error(dx, x.grad + dy) < 3e-7
    dx = normalize_backward(g.half(), x_hat.half(), rstd, dy)
    assert dx.dtype == torch.float32 and error(dx, x.grad + dy) < 3e-4


@pytest.mark.parametrize('C, block_n, capability', [(384, 4, 90), (768, 2, 80)])
def test_kernels_compile_without_spills(compiled, C, block_n, capability):
    constants = dict(C=C, BLOCK_C=triton.next_power_of_2(C), BLOCK_N=block_n)
    forward = compiled(
        normalize_kernel,
        '*fp32 *bf16 *fp32 *fp32 i32 i32 fp32',
        capability,
        HAS_SUMS=True,
        **constants,
    )
    backward = compiled(
        normalize_backward_kernel,
        '*bf16 *bf16 *fp32 *fp32 *fp32 *fp32 i32',
        capability,
        HAS_SCALE=True,
        **constants,
    )
    assert forward.spilled == backward.spilled == 0
    assert max(forward.registers, backward.registers) <= 80
