from copy import deepcopy

import pytest
import torch
from torch import nn

from xcit_mm.network.fast.kernels import interaction
from xcit_mm.network.fast.kernels.interaction import interaction_branch
from xcit_mm.network.layers import LPI

EPS = 1e-6


class Branch(nn.Module):
    """The branch of local interaction, as a block computes it with plain layers."""

    def __init__(self, C, gamma=1.0):
        super().__init__()
        self.norm = nn.LayerNorm(C, eps=EPS)
        self.lpi = LPI(C)
        self.gamma = nn.Parameter(torch.ones(C))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            self.lpi.bn.running_mean.normal_()
            self.lpi.bn.running_var.uniform_(0.2, 2)
            self.gamma.mul_(gamma)

    def forward(self, x, H, W, draw=None):
        y = self.gamma * self.lpi(self.norm(x), H, W)
        return x + (y if draw is None else draw.to(y.dtype)[:, None, None] * y)

    def fast(self, x, H, W, draw=None, dtype=None):
        norm, lpi = self.norm, self.lpi
        return interaction_branch(
            x,
            H,
            W,
            norm.weight,
            norm.bias,
            norm.eps,
            lpi.conv1.weight,
            lpi.conv1.bias,
            lpi.bn,
            lpi.bn.weight,
            lpi.bn.bias,
            lpi.conv2.weight,
            lpi.conv2.bias,
            self.gamma,
            draw,
            dtype,
        )


def results(branch, function, x, cotangent, *args):
    """Return the output, the statistics and all gradients by name, in float64."""
    branch.zero_grad()
    x = x.clone().requires_grad_()
    y = function(x, *args)
    y.backward(cotangent.to(y.dtype))
    gradients = {name: p.grad for name, p in branch.named_parameters()}
    named = dict(output=y.detach(), x=x.grad, **dict(branch.named_buffers()), **gradients)
    return {name: value.double() for name, value in named.items()}


def errors(values, expected):
    return {
        name: ((values[name] - expected[name]).norm() / expected[name].norm()).item()
        for name in expected
    }


def is_close(values, expected, bound=3e-6):
    """Compare each value by the norm of its error; the counter of batches must be equal."""
    counters = [v.pop('lpi.bn.num_batches_tracked') for v in (values, expected)]
    assert counters[0] == counters[1]
    far = {name: error for name, error in errors(values, expected).items() if not error < bound}
    assert not far


@pytest.fixture
def wide(monkeypatch):
    """Let few large programs compute, because the interpreter takes as long for small ones."""
    monkeypatch.setattr(interaction, 'GROUPS', 8)
    monkeypatch.setattr(interaction, 'PROGRAMS', 1)


def check(C, B, H, W, training=True, has_draw=False):
    branch = Branch(C).train(training)
    exact = deepcopy(branch).double()
    x = torch.randn(B, H * W, C) + 0.5
    cotangent = torch.randn_like(x)
    draw = torch.rand(B) + 0.5 if has_draw else None
    expected = results(exact, exact, x.double(), cotangent, H, W, draw)
    is_close(results(branch, branch.fast, x, cotangent, H, W, draw), expected)


def test_several_programs_share_an_image():
    check(72, 1, 4, 18)


@pytest.mark.parametrize('training', [True, False])
def test_images_of_a_batch(wide, training):
    check(32, 3, 5, 13, training, has_draw=True)


@pytest.mark.parametrize('size', [(13, 21), (33, 2), (1, 1), (1, 30)])
def test_odd_sizes(wide, size):
    check(16, 1, *size, training=size != (1, 1))


@pytest.mark.parametrize('C', [128, 192, 384, 512, 768])
def test_widths_of_architectures(wide, monkeypatch, C):
    monkeypatch.setattr(interaction, 'BLOCK_C', 256)
    check(C, 1, 2, 3)
