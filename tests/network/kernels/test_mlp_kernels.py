from copy import deepcopy

import pytest
import torch
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


def results(branch, function, x, cotangent, *args):
    """Return the output and all gradients by name, in float64."""
    branch.zero_grad()
    x = x.clone().requires_grad_()
    y = function(x, *args)
    y.backward(cotangent.to(y.dtype))
    gradients = {name: p.grad for name, p in branch.named_parameters()}
    named = dict(output=y.detach(), x=x.grad, **gradients)
    return {name: value.double() for name, value in named.items()}


def errors(values, expected):
    return {
        name: ((values[name] - expected[name]).norm() / expected[name].norm()).item()
        for name in expected
    }


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Let few large programs compute, because the interpreter takes as long for small ones."""
    monkeypatch.setattr(mlp, 'BLOCK_N', 64)
    monkeypatch.setattr(mlp, 'BLOCK_C', 512)
    monkeypatch.setattr(mlp, 'FLAT', 1 << 18)
    monkeypatch.setattr(mlp, 'FOLDED', 256)
    monkeypatch.setattr(mlp, 'SUMMED', 4096)
    monkeypatch.setattr(mlp, 'UNFOLDED', 512)


def check(C, B, N, has_draw=False):
    branch = Branch(C)
    exact = deepcopy(branch).double()
    x = torch.randn(B, N, C) + 0.5
    cotangent = torch.randn_like(x)
    draw = torch.rand(B) + 0.5 if has_draw else None
    expected = results(exact, exact, x.double(), cotangent, draw)
    values = results(branch, branch.fast, x, cotangent, draw)
    far = {name: error for name, error in errors(values, expected).items() if not error < 3e-6}
    assert not far


@pytest.mark.parametrize('C', [128, 192, 384, 512, 768])
def test_widths_of_architectures(C):
    check(C, 1, 9)


@pytest.mark.parametrize(('B', 'N'), [(1, 1), (2, 66), (3, 33)])
def test_numbers_of_tokens(monkeypatch, B, N):
    monkeypatch.setattr(mlp, 'BLOCK_C', 32)
    monkeypatch.setattr(mlp, 'UNFOLDED', 16)
    monkeypatch.setattr(mlp, 'SUMMED', 64)
    check(40, B, N, has_draw=True)


@pytest.mark.parametrize('gamma', [1, 1e-5])
def test_float16_is_as_accurate_as_the_layers(gamma):
    branch = Branch(64, gamma)
    exact = deepcopy(branch).double()
    x = torch.randn(2, 150, 64)
    cotangent = torch.randn_like(x)
    expected = results(exact, exact, x.double(), cotangent)
    plain, fast = deepcopy(branch), deepcopy(branch)
    with torch.autocast('cpu', torch.float16):
        plain_values = results(plain, plain, x, cotangent)
    values = results(fast, fast.fast, x, cotangent, None, torch.float16)
    for output in (expected, plain_values, values):
        output['output'] -= x
    bounds = errors(plain_values, expected)
    far = {
        name: (e, bounds[name])
        for name, e in errors(values, expected).items()
        if e > 1.05 * bounds[name]
    }
    assert not far


def test_parameters_of_16_bits():
    branch = Branch(32).half()
    exact = deepcopy(branch).double()
    x = torch.randn(2, 50, 32).half()
    cotangent = torch.randn_like(x)
    expected = results(exact, exact, x.double(), cotangent)
    errors_of_all = errors(results(branch, branch.fast, x, cotangent), expected)
    assert max(errors_of_all.values()) < 3e-3


def test_inference_leaves_its_input_alone():
    branch, x = Branch(32), torch.randn(2, 20, 32)
    before = x.clone()
    with torch.no_grad():
        expected = branch(x)
        assert (branch.fast(x) - expected).norm() <= 3e-6 * expected.norm()
    assert torch.equal(x, before)


def test_a_batch_without_images():
    branch = Branch(16)
    x = torch.randn(0, 12, 16, requires_grad=True)
    y = branch.fast(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 12, 16)
    assert all((parameter.grad == 0).all() for parameter in branch.parameters())


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
