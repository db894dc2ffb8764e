import pytest
import torch
from helpers.branches import check, check_float16
from torch import nn

from xcit_mm.network.fast.kernels import mlp
from xcit_mm.network.fast.kernels.mlp import mlp_branch
from xcit_mm.network.layers import Mlp


class Branch(nn.Module):
    """The branch of the MLP, as a block computes it with plain layers."""

    def __init__(self, C, gamma=1.0):
        super().__init__()
        self.norm = nn.LayerNorm(C, eps=1e-6)
        self.mlp = Mlp(C)
        self.gamma = nn.Parameter(torch.ones(C))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            self.gamma.mul_(gamma)

    def forward(self, x, draw=None):
        y = self.gamma * self.mlp(self.norm(x))
        return x + (y if draw is None else draw.to(y.dtype)[:, None, None] * y)

    def fast(self, x, draw=None, dtype=None):
        norm, fc1, fc2 = self.norm, self.mlp.fc1, self.mlp.fc2
        weights = fc1.weight, fc1.bias, fc2.weight, fc2.bias, self.gamma
        return mlp_branch(x, norm.weight, norm.bias, norm.eps, *weights, draw, dtype)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Let few large programs compute, because the interpreter takes as long for small ones."""
    monkeypatch.setattr(mlp, 'BLOCK_N', 64)
    monkeypatch.setattr(mlp, 'BLOCK_C', 512)
    monkeypatch.setattr(mlp, 'FLAT', 1 << 18)
    monkeypatch.setattr(mlp, 'FOLDED', 256)
    monkeypatch.setattr(mlp, 'SUMMED', 4096)
    monkeypatch.setattr(mlp, 'UNFOLDED', 512)


@pytest.mark.parametrize('C', [128, 192, 768])
def test_widths_of_architectures(C):
    check(Branch(C), torch.randn(1, 9, C) + 0.5)


@pytest.mark.parametrize(('B', 'N'), [(1, 1), (2, 66), (3, 33)])
def test_numbers_of_tokens(monkeypatch, B, N):
    monkeypatch.setattr(mlp, 'BLOCK_C', 32)
    monkeypatch.setattr(mlp, 'UNFOLDED', 16)
    monkeypatch.setattr(mlp, 'SUMMED', 64)
    check(Branch(40), torch.randn(B, N, 40) + 0.5, torch.rand(B) + 0.5)


@pytest.mark.parametrize('gamma', [1, 1e-5])
def test_float16_is_as_accurate_as_the_layers(gamma):
    check_float16(Branch(64, gamma), torch.randn(2, 150, 64))


def test_parameters_of_16_bits():
    check(Branch(32).half(), torch.randn(2, 50, 32).half(), bound=3e-3)


def test_inference_leaves_its_input_alone():
    branch, x = Branch(32), torch.randn(2, 20, 32)
    before = x.clone()
    with torch.no_grad():
        expected = branch(x)
        assert (branch.fast(x) - expected).norm() <= 3e-6 * expected.norm()
    assert torch.equal(x, before)


# Types of arguments, and constants.
KERNELS = {
    mlp.fold_kernel: (
        '*fp32 *fp32 *fp32 *fp32 *fp32 {0} {0} {0}',
        dict(C=768, BLOCK_O=4, BLOCK_C=1024),
    ),
    mlp.gelu_kernel: ('{0} {0} i32', dict(BLOCK=2048)),
    mlp.residual_kernel: (
        '*fp32 {0} *fp32 *fp32 *fp32 *fp32 i32',
        dict(C=384, BLOCK_N=16, BLOCK_C=128),
    ),
    mlp.cast_kernel: (
        '*fp32 *fp32 *fp32 {0} {0} *fp32 *fp32 i32 i32',
        dict(C=384, BLOCK_N=16, BLOCK_C=128, ALL_C=512),
    ),
    mlp.gelu_backward_kernel: (
        '{0} {0} {0} *fp32 i32 i32',
        dict(C=1536, BLOCK_N=16, BLOCK_C=128),
    ),
    mlp.sums_kernel: (' '.join(['*fp32'] * 8) + ' i32 i32', dict(C=384, BLOCK_P=128, BLOCK_C=16)),
    mlp.unfold_kernel: (' '.join(['*fp32'] * 16), dict(C=384, BLOCK_O=128, BLOCK_C=8)),
}


@pytest.mark.parametrize('kernel', KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(('dtype', 'capability'), [('*bf16', 90), ('*fp32', 80)])
def test_kernels_compile_without_spills(compiled, kernel, dtype, capability):
    arguments, constants = KERNELS[kernel]
    result = compiled(kernel, arguments.format(dtype), capability, **constants)
    assert result.spilled == 0
    assert result.registers <= 102  # so that five programs share the registers of a multiprocessor
