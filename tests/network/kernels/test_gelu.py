import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional as F
from triton.runtime.interpreter import InterpretedFunction

from xcit_mm.network.fast.kernels.gelu import gelu, gelu_and_slope

BLOCK = 1 << 16


@triton.jit
def both_kernel(x_ptr, value_ptr, again_ptr, slope_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at).to(tl.float32)
    tl.store(value_ptr + at, gelu(x))
    value, slope = gelu_and_slope(x)
    tl.store(again_ptr + at, value)
    tl.store(slope_ptr + at, slope)


@pytest.fixture
def computed(monkeypatch):
    """Return values and slopes at the points x (BLOCK,), in float64."""
    interpreted = InterpretedFunction(both_kernel.fn)
    for function in (gelu, gelu_and_slope):
        monkeypatch.setitem(globals(), function.__name__, InterpretedFunction(function.fn))

    def compute(x):
        results = torch.empty(3, len(x))
        interpreted[(1,)](x, *results, BLOCK=len(x))
        return results.double()

    return compute


def exact(x):
    x = x.double().requires_grad_()
    value = F.gelu(x)
    value.sum().backward()
    return value.detach(), x.grad


@pytest.mark.parametrize('width', [0.01, 1, 8])
def test_gelu_and_its_slope_are_accurate_to_float32(computed, width):
    x = torch.linspace(-width, width, BLOCK)
    value, again, slope = computed(x)
    expected, expected_slope = exact(x)
    bound = 1e-7 * x.double().abs().clamp(max=1) + 1e-12
    assert ((value - expected).abs() <= bound + 6e-8 * expected.abs()).all()
    assert ((again - expected).abs() <= bound + 1.2e-7 * expected.abs()).all()
    assert (slope - expected_slope).abs().max() <= 2e-7


@pytest.mark.filterwarnings('ignore:overflow encountered:RuntimeWarning')  # as on a GPU
def test_large_values_are_exact(computed):
    x = 6 * 10 ** torch.linspace(0, 6, BLOCK)
    for sign in (1, -1):
        value, again, slope = computed(sign * x)
        limit = (sign * x).clamp(min=0).double()
        assert (value - limit).abs().max() <= 6e-9
        assert (again - limit).abs().max() <= 6e-9
        assert (slope - max(sign, 0)).abs().max() <= 6e-8


def test_nan_stays_nan(computed):
    assert computed(torch.full((16,), float('nan'))).isnan().all()
