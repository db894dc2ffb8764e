from copy import deepcopy

import pytest
import torch
from helpers.compiled_kernels import instructions
from helpers.processes import in_processes
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
    monkeypatch.setattr(interaction, 'SUMMED', 512)


def check(C, B, H, W, training=True, has_draw=False):
    branch = Branch(C).train(training)
    exact = deepcopy(branch).double()
    x = torch.randn(B, H * W, C) + 0.5
    cotangent = torch.randn_like(x)
    draw = torch.rand(B) + 0.5 if has_draw else None
    expected = results(exact, exact, x.double(), cotangent, H, W, draw)
    is_close(results(branch, branch.fast, x, cotangent, H, W, draw), expected)


def test_several_programs_share_an_image(monkeypatch):
    monkeypatch.setattr(interaction, 'SUMMED', 64)
    check(72, 1, 4, 17)


@pytest.mark.parametrize('training', [True, False])
def test_images_of_a_batch(wide, training):
    check(32, 2 + training, 3, 13, training, has_draw=True)


@pytest.mark.parametrize('size', [(13, 21), (7, 2), (1, 1), (2, 33)])
def test_odd_sizes(wide, size):
    check(16, 1, *size, training=size != (1, 1))


@pytest.mark.parametrize('C', [128, 192, 384, 512, 768])
def test_widths_of_architectures(wide, monkeypatch, C):
    monkeypatch.setattr(interaction, 'BLOCK_C', 1024)
    check(C, 1, 2, 3)


@pytest.mark.parametrize('gamma', [1, 1e-5])
def test_float16_is_as_accurate_as_the_layers(wide, gamma):
    branch = Branch(32, gamma)
    exact = deepcopy(branch).double()
    x = torch.randn(1, 9 * 29, 32)
    cotangent, size = torch.randn_like(x), (9, 29)
    expected = results(exact, exact, x.double(), cotangent, *size)
    plain, fast = deepcopy(branch), deepcopy(branch)
    with torch.autocast('cpu', torch.float16):
        plain_values = results(plain, plain, x, cotangent, *size)
    values = results(fast, fast.fast, x, cotangent, *size, None, torch.float16)
    for output in (expected, plain_values, values):
        output['output'] -= x
        del output['lpi.bn.num_batches_tracked']
    bounds = errors(plain_values, expected)
    far = {
        name: (e, bounds[name])
        for name, e in errors(values, expected).items()
        if e > 1.05 * bounds[name]
    }
    assert not far


def test_parameters_of_16_bits(wide):
    branch = Branch(16).half()
    exact = deepcopy(branch).double()
    x = torch.randn(2, 3 * 9, 16).half()
    cotangent = torch.randn_like(x)
    expected = results(exact, exact, x.double(), cotangent, 3, 9)
    is_close(results(branch, branch.fast, x, cotangent, 3, 9), expected, 3e-3)


def test_statistics_of_values_far_from_zero(wide):
    branch = Branch(16)
    with torch.no_grad():
        branch.lpi.conv1.bias.fill_(300)
    exact = deepcopy(branch).double()
    x = torch.randn(1, 6 * 20, 16)
    branch.fast(x, 6, 20)
    exact(x.double(), 6, 20)
    running = branch.lpi.bn.running_var.double()
    torch.testing.assert_close(running, exact.lpi.bn.running_var, rtol=1e-4, atol=0)


def test_a_batch_without_images(wide):
    branch = Branch(16)
    state = deepcopy(branch.lpi.bn.running_mean)
    x = torch.randn(0, 12, 16, requires_grad=True)
    y = branch.fast(x, 3, 4)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 12, 16)
    assert all((parameter.grad == 0).all() for parameter in branch.parameters())
    assert torch.equal(branch.lpi.bn.running_mean, state)


def test_processes_share_their_statistics(wide, tmp_path):
    branch = Branch(16)
    exact = deepcopy(branch).double()
    branch.lpi.bn = nn.SyncBatchNorm.convert_sync_batchnorm(branch.lpi.bn)
    x = torch.randn(3, 3 * 5, 16)
    cotangent = torch.randn_like(x)
    expected = results(exact, exact, x.double(), cotangent, 3, 5)

    def compare(rank: int) -> None:
        share = slice(0, 1) if rank == 0 else slice(1, 3)
        values = results(branch, branch.fast, x[share], cotangent[share], 3, 5)
        for name, _ in branch.named_parameters():
            torch.distributed.all_reduce(values[name])
        is_close(values, expected | {key: expected[key][share] for key in ('output', 'x')})

    in_processes(2, compare, tmp_path)


SIZE = 'i32 i32 i32'
# For each kernel: types of its arguments, its constants, and the largest number of instructions for
# a value in its loop, including the instructions for borders.
KERNELS = {
    'first': (
        interaction.convolution_kernel,
        f'{{0}} *fp32 *fp32 *fp32 *fp32 None None None {{0}} *fp32 {SIZE}',
        dict(HAS_GELU=True),
        54,
    ),
    'second': (
        interaction.convolution_kernel,
        f'{{0}} *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 None {SIZE}',
        dict(HAS_GELU=False),
        36,
    ),
    'second_backward': (
        interaction.second_backward_kernel,
        f'*fp32 {{0}} *fp32 *fp32 *fp32 *fp32 {{0}} *fp32 {SIZE}',
        {},
        52,
    ),
    'first_backward': (
        interaction.first_backward_kernel,
        f'{{0}} {{0}} {{0}} *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 {{0}} *fp32 {SIZE}',
        {},
        84,
    ),
}


@pytest.mark.parametrize(
    ('name', 'dtype', 'C', 'capability'),
    [
        ('first', '*bf16', 384, 90),
        ('second', '*fp32', 768, 80),
        ('second_backward', '*fp32', 192, 80),
        ('first_backward', '*bf16', 384, 90),
    ],
)
def test_kernels_compile_without_spills(compiled, name, dtype, C, capability):
    kernel, arguments, options, most = KERNELS[name]
    constants = dict(C=C, GROUPS=4, BLOCK_C=64, num_warps=4, maxnreg=interaction.REGISTERS)
    result = compiled(kernel, arguments.format(dtype), capability, **constants, **options)
    assert result.spilled == 0
    assert instructions(result)[1] <= 8 * most  # of two channels of four columns of a thread
