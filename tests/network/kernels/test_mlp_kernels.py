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

    def fast(self, x, draw=None, dtype=None, folded=None):
        norm, fc1, fc2 = self.norm, self.mlp.fc1, self.mlp.fc2
        weights = fc1.weight, fc1.bias, fc2.weight, fc2.bias, self.gamma
        return mlp_branch(x, norm.weight, norm.bias, norm.eps, *weights, draw, dtype, folded)


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


@pytest.mark.parametrize(('B', 'N'), [(1, 1), (2, 66), (3, 273)])
def test_numbers_of_tokens(monkeypatch, B, N):
    monkeypatch.setattr(mlp, 'BLOCK_C', 32)
    check(40, B, N, has_draw=True)
