import copy

import pytest
import torch
from torch import nn

from xcit_mm.network.fast.kernels.batch_norm import (
    BLOCK_C,
    BLOCK_P,
    merge_kernel,
    running_statistics,
    running_statistics_kernel,
    statistics,
    statistics_kernel,
    uses_batch_statistics,
)

CASES = [(1, 16, 0.1), (300, 48, None), (3, 24, 0.0)]  # partials, channels, momentum


def partials_of(sets: list[torch.Tensor]) -> torch.Tensor:
    """The partials (P, 3, C) of sets of pixels (pixels, C) in float64."""
    rows = []
    for pixels in sets:
        mean = pixels.mean(0) if len(pixels) else pixels.new_zeros(pixels.shape[1])
        squares = (pixels - mean).square().sum(0)
        rows.append(torch.stack((torch.full_like(mean, len(pixels)), mean, squares)))
    return torch.stack(rows).float()


def random_sets(P: int, C: int, mean: float = 0.0) -> list[torch.Tensor]:
    sizes = torch.randint(1, 9, (P,)).tolist()
    return [torch.randn(n + 1, C, dtype=torch.float64) + mean for n in sizes]


def random_norm(C: int, **options) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(C, **options)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.uniform_(0.5, 2.0)
    return norm


def compare(normalization: torch.Tensor, norm: nn.BatchNorm2d, pixels: torch.Tensor) -> None:
    """Compare with a layer of PyTorch in float64, for the pixels (T, C)."""
    exact = copy.deepcopy(norm).double()
    mean, var = exact.running_mean, exact.running_var
    if uses_batch_statistics(norm):
        mean, var = pixels.mean(0), pixels.var(0, unbiased=False)
    rstd = (var + norm.eps).rsqrt()
    torch.testing.assert_close(normalization[0], mean.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normalization[1], rstd.float(), rtol=1e-6, atol=0.0)
    factor, shift = normalization[2:4, :, None, None].double()
    maps = pixels.T[None, :, :, None]  # (1, C, T, 1)
    torch.testing.assert_close(factor * maps + shift, exact(maps), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('P, C, momentum', CASES)
def test_statistics_are_those_of_all_pixels(P, C, momentum):
    norm = random_norm(C, momentum=momentum)
    exact = copy.deepcopy(norm).double()
    for _ in range(2):
        sets = random_sets(P, C)
        pixels = torch.cat(sets)
        normalization = statistics(partials_of(sets), norm, norm.weight, norm.bias, None)
        compare(normalization, norm, pixels)
        torch.testing.assert_close(normalization[4], torch.full((C,), 1 / len(pixels)))
        exact(pixels.T[None, :, :, None])
        for mine, theirs in zip(norm.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=1e-6, atol=1e-6)


def test_the_variance_keeps_its_digits_beside_a_large_mean():
    norm = random_norm(16)
    sets = random_sets(50, 16, mean=1000.0)
    # The partials themselves are rounded to float32: deviations of means by 6e-8 * 1000.
    normalization = statistics(partials_of(sets), norm, norm.weight, norm.bias, None)
    rstd = (torch.cat(sets).var(0, unbiased=False) + norm.eps).rsqrt()
    torch.testing.assert_close(normalization[1], rstd.float(), rtol=2e-5, atol=0.0)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_running_statistics_normalize_in_evaluation(dtype):
    norm = random_norm(48).eval().to(dtype)
    assert not uses_batch_statistics(norm)
    normalization = running_statistics(norm, norm.weight, norm.bias)
    compare(normalization, norm, torch.randn(5, 48, dtype=torch.float64))
    assert not normalization[4].any()


def test_kernels_compile_without_spills(compiled):
    capability = 90
    blocks = dict(C=384, BLOCK_C=BLOCK_C, BLOCK_P=BLOCK_P, num_warps=8)
    merge = compiled(merge_kernel, '*fp32 *fp32 i32', capability, **blocks)
    running = '*fp32 *fp32 *i64 *fp32 *fp32 fp32 fp32'
    train = compiled(statistics_kernel, f'*fp32 {running} *fp32 i32', capability, **blocks)
    evaluate = compiled(
        running_statistics_kernel,
        '*fp32 *fp32 *fp32 *fp32 fp32 *fp32',
        capability,
        C=384,
        BLOCK_C=128,
        num_warps=1,
    )
    assert merge.spilled == train.spilled == evaluate.spilled == 0
