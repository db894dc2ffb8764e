from copy import deepcopy

import pytest
import torch
from helpers.branches import assert_close, check, check_float16, exact_results, results
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


@pytest.fixture
def wide(monkeypatch):
    """Let few large programs compute, because the interpreter takes as long for small ones."""
    monkeypatch.setattr(interaction, 'GROUPS', 8)
    monkeypatch.setattr(interaction, 'PROGRAMS', 1)
    monkeypatch.setattr(interaction, 'SUMMED', 512)


def tokens(B, H, W, C):
    return torch.randn(B, H * W, C) + 0.5


def test_several_programs_share_an_image(monkeypatch):
    monkeypatch.setattr(interaction, 'SUMMED', 64)
    check(Branch(72), tokens(1, 4, 17, 72), 4, 17)


@pytest.mark.parametrize('training', [True, False])
def test_images_of_a_batch(wide, training):
    B = 2 + training
    check(Branch(32).train(training), tokens(B, 3, 13, 32), 3, 13, torch.rand(B) + 0.5)


@pytest.mark.parametrize('size', [(13, 21), (1, 1), (2, 33)])
def test_odd_sizes(wide, size):
    # The gradient of norm.weight is small against what it sums up.
    check(Branch(16).train(size != (1, 1)), tokens(1, *size, 16), *size, as_layers=True)


@pytest.mark.parametrize('C', [128, 192, 768])
def test_widths_of_architectures(wide, monkeypatch, C):
    monkeypatch.setattr(interaction, 'BLOCK_C', 1024)
    check(Branch(C), tokens(1, 2, 3, C), 2, 3)


@pytest.mark.parametrize('gamma', [1, 1e-5])
def test_float16_is_as_accurate_as_the_layers(wide, gamma):
    check_float16(Branch(32, gamma), torch.randn(1, 9 * 29, 32), 9, 29)


def test_parameters_of_16_bits(wide):
    check(Branch(16).half(), torch.randn(2, 3 * 9, 16).half(), 3, 9, bound=3e-3)


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


def test_processes_share_their_statistics(wide, tmp_path):
    branch, x = Branch(16), torch.randn(3, 3 * 5, 16)
    cotangent = torch.randn_like(x)
    expected = exact_results(branch, x, cotangent, 3, 5)
    branch.lpi.bn = nn.SyncBatchNorm.convert_sync_batchnorm(branch.lpi.bn)

    def compare(rank: int) -> None:
        share = slice(0, 1) if rank == 0 else slice(1, 3)
        values = results(branch, branch.fast, x[share], cotangent[share], 3, 5)
        for name, _ in branch.named_parameters():
            torch.distributed.all_reduce(values[name])
        assert_close(values, expected | {key: expected[key][share] for key in ('output', 'x')})

    in_processes(2, compare, tmp_path)


SIZE = 'i32 i32 i32'
SUMS = ' '.join(['*fp32'] * 4)
# For each kernel: types of its arguments, its constants, and how it is launched.
KERNELS = [
    (
        interaction.convolution_kernel,
        f'*bf16 {SUMS} None None None *bf16 *fp32 {SIZE}',
        dict(HAS_GELU=True, C=384, capability=90),
    ),
    (
        interaction.convolution_kernel,
        f'{SUMS} {SUMS} *fp32 None {SIZE}',
        dict(HAS_GELU=False, C=768, capability=80),
    ),
    (
        interaction.second_backward_kernel,
        f'{SUMS} {SUMS} {SIZE}',
        dict(C=192, capability=80),
    ),
    (
        interaction.first_backward_kernel,
        f'*bf16 *bf16 *bf16 {SUMS} *fp32 *fp32 *bf16 *fp32 {SIZE}',
        dict(C=384, capability=90),
    ),
]


@pytest.mark.parametrize('kernel, arguments, options', KERNELS)
def test_kernels_compile_without_spills(compiled, kernel, arguments, options):
    constants = dict(GROUPS=4, BLOCK_C=64, num_warps=4, maxnreg=interaction.REGISTERS)
    assert compiled(kernel, arguments, **constants, **options).spilled == 0
