"""Kernels of the attention, in Triton's interpreter, against the layers in float64."""

import copy
from collections.abc import Callable

import pytest
import torch
import triton
from torch import Tensor, nn
from triton.runtime.jit import JITFunction

from xcit_mm.network.fast.kernels import attention
from xcit_mm.network.fast.kernels.attention import attention_branch, cross_covariance_attention
from xcit_mm.network.fast.xca_operator import xca
from xcit_mm.network.layers import XCABlock

LIMIT = 3e-6  # relative error in float32


def error(value: Tensor, reference: Tensor) -> float:
    """The norm of the difference, relative to the norm of the reference."""
    difference = (value.double() - reference).norm()
    return (difference / reference.norm()).item() if reference.any() else difference.item()


def block_of(C: int, heads: int, eta: float = 1.0) -> nn.Module:
    """Return a block in float64 whose parameters differ from their initial values."""
    block = XCABlock(C, heads, eta, 0.0).double()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            size = eta if name.startswith('gamma') else 1.0
            parameter.add_(0.1 * size * torch.randn_like(parameter))
            parameter.copy_(parameter.float())
    return block


def plain(block: nn.Module, x: Tensor, draw: Tensor | None) -> Tensor:
    y = block.gamma1 * block.attn(block.norm1(x))
    return x + (y if draw is None else y * draw.to(y.dtype)[:, None, None])


def fused(block: nn.Module, x: Tensor, draw: Tensor | None, dtype: torch.dtype) -> Tensor:
    norm, attn = block.norm1, block.attn
    projections = attn.qkv.weight, attn.qkv.bias, attn.temperature, *attn.proj.parameters()
    return attention_branch(
        x, norm.weight, norm.bias, norm.eps, *projections, block.gamma1, draw, dtype
    )


def gradients(block: nn.Module, x: Tensor, y: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    """What the branch adds to the gradient of x, and the gradients of its parameters."""
    named = {n: p for n, p in block.named_parameters() if n[:5] in ('norm1', 'attn.', 'gamma')}
    named = {n: p for n, p in named.items() if n not in ('gamma2', 'gamma3')}
    values = torch.autograd.grad(y, [x, *named.values()], cotangent)
    return dict(zip(['x', *named], [values[0] - cotangent, *values[1:]], strict=True))


def compared(
    block: nn.Module, x: Tensor, draw: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Errors of the output and the gradients of the branch; x and the draws are in float64."""
    cotangent = torch.randn_like(x).float().double()
    x = x.float().double().requires_grad_()
    y = plain(block, x, draw)
    exact = {'output': (y - x).detach(), **gradients(block, x, y, cotangent)}
    single = copy.deepcopy(block).float()
    x32 = x.detach().float().requires_grad_()
    y = fused(single, x32, draw, dtype)
    assert y.dtype == torch.float32
    ours = {'output': (y - x32).detach(), **gradients(single, x32, y, cotangent.float())}
    errors = {name: error(ours[name], exact[name]) for name in exact}
    if dtype == torch.float32:
        # The branch is a small part of x and of the gradient that arrives, in whose dtype it is.
        errors['output'] = error(y.detach(), x.detach() + exact['output'])
        errors['x'] = error(ours['x'] + cotangent.float(), exact['x'] + cotangent)
        return errors
    with torch.autocast('cpu', dtype):
        y = plain(single, x32, draw)
    plain_values = {'output': (y - x32).detach(), **gradients(single, x32, y, cotangent.float())}
    return {name: errors[name] / error(plain_values[name], exact[name]) for name in exact}


def with_mean(*size: int) -> Tensor:
    """Tokens with a mean of each channel that is as large as their deviation."""
    return torch.randn(size, dtype=torch.float64) + torch.randn(size[2], dtype=torch.float64)


@pytest.fixture
def in_one_tile(monkeypatch) -> Callable[..., None]:
    """Let a program compute a whole small matrix, which saves the interpreter most of its time."""

    def set_blocks(C: int, products: bool = True) -> None:
        for name in ('BLOCK', 'BLOCK_K', *(('SMALL_TILE', 'STRIP') if products else ())):
            monkeypatch.setattr(attention, name, triton.next_power_of_2(C))

    return set_blocks


def test_the_branch_is_exact_in_float32():
    draw = torch.tensor([0.0, 1.25])
    errors = compared(block_of(128, 4), with_mean(2, 33, 128), draw)
    assert max(errors.values()) < LIMIT, errors


@pytest.mark.parametrize('B, C, heads', [(3, 192, 4), (1, 768, 16)])
def test_the_branch_is_exact_in_all_widths(in_one_tile, B, C, heads):
    in_one_tile(C)
    errors = compared(block_of(C, heads), with_mean(B, 7, C))
    assert max(errors.values()) < LIMIT, errors


@pytest.mark.parametrize('N, C, heads, eta', [(273, 128, 4, 1e-5), (66, 192, 4, 1.0)])
def test_16_bits_are_not_less_exact_than_the_layers(in_one_tile, N, C, heads, eta):
    in_one_tile(C, products=False)
    draw = torch.tensor([1.25])
    ratios = compared(block_of(C, heads, eta), with_mean(1, N, C), draw, torch.float16)
    assert max(ratios.values()) < 1, ratios


def operator(x: Tensor, *parameters: Tensor | None) -> list[Tensor]:
    """Return output and gradients of the operator, or of the direct form if x is in float64."""
    leaves = [x, *(p for p in parameters if p is not None)]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    rest = iter(leaves[1:])
    arguments = leaves[0], *(p if p is None else next(rest) for p in parameters)
    if x.dtype == torch.float64:
        y = xca(*arguments, form='direct')
    else:
        y = cross_covariance_attention(*arguments)
    # A cotangent that all dtypes represent, and whose sum over the tokens is not small.
    cotangent = (torch.arange(y.numel()).view_as(y) % 7 - 2).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, cotangent)]


@pytest.mark.parametrize('has_bias', [True, False])
def test_the_operator_keeps_its_digits_if_the_mean_of_tokens_is_large(in_one_tile, has_bias):
    in_one_tile(128)
    attn = block_of(128, 4).attn
    x = (torch.randn(2, 66, 128) + 30 * torch.randn(128)).double()
    biases = (attn.qkv.bias, attn.proj.bias) if has_bias else (None, None)
    parameters = attn.qkv.weight, biases[0], attn.temperature, attn.proj.weight, biases[1]
    exact = operator(x, *parameters)
    ours = operator(x.float(), *(p if p is None else p.float() for p in parameters))
    errors = [error(*pair) for pair in zip(ours, exact, strict=True)]
    assert max(errors) < 1e-5, errors


@torch.no_grad()
def test_inference_is_exact_in_16_bits_without_a_gradient(in_one_tile):
    in_one_tile(512, products=False)
    block, x = block_of(512, 8), with_mean(1, 7, 512).float()
    exact = plain(block, x.double(), None) - x
    assert error(fused(block.float(), x, None, torch.float16) - x, exact) < 1e-3


def test_inference_computes_the_same_and_half_precision_weights_keep_their_dtype(in_one_tile):
    in_one_tile(128)
    block = block_of(128, 4).half()
    x = torch.randn(1, 33, 128).half().requires_grad_()
    y = fused(block, x, None, torch.float16)
    with torch.no_grad():
        assert torch.equal(fused(block, x, None, torch.float16), y)
    values = gradients(block, x, y, torch.ones_like(x))
    assert y.dtype == torch.float16 and {v.dtype for v in values.values()} == {torch.float16}
    exact = copy.deepcopy(block).double()
    x = x.detach().double().requires_grad_()
    reference = gradients(exact, x, plain(exact, x, None), torch.ones_like(x))
    assert max(error(values[name], reference[name]) for name in values) < 5e-3


def signatures(C: int, d: int, dtype: str) -> list[tuple[JITFunction, str, dict]]:
    """The types of the arguments of the kernels, and their constants, as they are launched."""
    is_wide = dtype == 'fp32'
    t, f = f'*{dtype}', '*fp32'
    flags = dict(HAS_NORM=True, HAS_GAMMA=True)
    small = dict(C=C, BLOCK=64, BLOCK_K=32)
    head = dict(C=C, d=d, BLOCK_D=64, num_warps=8)
    tile, warps = (64, 4) if is_wide else (128, 8)
    tile_j = 256 if C % 256 == 0 and not is_wide else tile
    tokens = dict(
        C=C,
        BLOCK_N=tile,
        BLOCK_C=tile,
        BLOCK_K=32 if is_wide else 64,
        PRECISION='tf32x3' if is_wide else 'tf32',
        num_warps=warps,
        num_stages=3,
    )
    products = dict(
        C=C,
        TILE=tile,
        BLOCK_N=32 if is_wide else 64,
        BLOCK_P=16,
        PRECISION=tokens['PRECISION'],
        num_warps=warps,
        num_stages=3,
    )
    symmetric = dict(TILE_J=tile, SYMMETRIC=True, CENTERED=is_wide)
    full = dict(TILE_J=tile_j, SYMMETRIC=False, CENTERED=False)
    sizes = dict(C=C, BLOCK_C=triton.next_power_of_2(C), BLOCK_N=2)
    moments = dict(C=C, TILE=tile, BLOCK=16)
    return [
        (
            attention.cast_kernel,
            f'{f} {f} {t} {f} i32 i32',
            sizes | dict(HAS_DRAW=True, WRITES=True),
        ),
        (attention.products_kernel, f'{t} {t} {f} {f} {f} i32 i32 i32 i32', products | symmetric),
        (attention.products_kernel, f'{t} {t} {f} {f} {f} i32 i32 i32 i32', products | full),
        (attention.moments_kernel, f'{f} {f} {f} {f} {f} i32 i32 i32 i32', moments | symmetric),
        (attention.weighted_covariance_kernel, f'{f} {f} {f} {f}', small | dict(HAS_NORM=True)),
        (
            attention.attention_kernel,
            ' '.join([f] * 12) + ' i32',
            head | dict(BLOCK_C=32, HAS_NORM=True, HAS_BIAS=True, KEEPS=True),
        ),
        (
            attention.map_kernel,
            f'{f} {f} {f} {f} {f} {t} {f} {t} {f}',
            small | dict(BLOCK_C=triton.next_power_of_2(C), HAS_BIAS=True, SCALES=True),
        ),
        (
            attention.map_tokens_kernel,
            f'{t} {t} {f} {f} {f} {f} {f} i32',
            tokens | dict(HAS_GAMMA=True, HAS_DRAW=True),
        ),
        (attention.projected_kernel, ' '.join([f] * 7), small | flags),
        (attention.attention_backward_kernel, ' '.join([f] * 15), head | dict(BLOCK_C=32) | flags),
        (attention.slope_kernel, f'{f} {f} {f} {f} {f} {f} {t} {f} i32', small | flags),
        (attention.token_gradient_kernel, f'{t} {t} {t} {t} {f} {t} i32 i32', tokens),
        (
            attention.weight_gradient_kernel,
            ' '.join([f] * 19) + ' i32',
            head | dict(BLOCK_C=64, HAS_BIAS=True) | flags,
        ),
        (
            attention.vector_gradient_kernel,
            ' '.join([f] * 10) + ' i32',
            dict(C=C, heads=C // d, BLOCK=64, BLOCK_H=16, HAS_BIAS=True) | flags,
        ),
    ]


# Those whose tiles depend on the width or the dtype.
OF_TOKENS = ('products_kernel', 'map_tokens_kernel', 'token_gradient_kernel')


@pytest.mark.parametrize(
    'capability, C, dtype, names',
    [
        pytest.param(90, 384, 'bf16', None, marks=pytest.mark.slow),
        (80, 768, 'bf16', OF_TOKENS[:1]),
    ],
)
def test_kernels_compile_without_spills(compiled, capability, C, dtype, names):
    for kernel, types, options in signatures(C, 48, dtype):
        if names is None or kernel.__name__ in names:
            result = compiled(kernel, types, capability, **options)
            assert result.spilled == 0, kernel.__name__
            assert result.shared <= (163 if capability == 80 else 227) * 1024, kernel.__name__
            if kernel.__name__ in OF_TOKENS and capability == 90 and C == 384:
                assert result.registers <= 128, 'only one program fits into a multiprocessor'
                assert 'wgmma.mma' in result.ptx


def test_second_derivatives_of_the_operator():
    x = torch.randn(1, 40, 32)
    parameters = [
        0.3 * torch.randn(*shape) for shape in ((96, 32), (96,), (2, 1, 1), (32, 32), (32,))
    ]
    seconds = []
    for function in (cross_covariance_attention, xca):
        leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
        first = torch.autograd.grad(function(*leaves).sin().sum(), leaves[:3], create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        seconds.append(torch.autograd.grad(penalty, leaves))
    for value, expected in zip(*seconds, strict=True):
        assert error(value, expected.double()) <= 1e-4
