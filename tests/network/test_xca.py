"""The attention operator: its two forms against each other and against float64."""

from functools import partial

import pytest
import torch
from helpers import held_bytes, relative_error
from torch import Tensor
from torch.nn import functional as F

from xcit_mm.network.archs import ARCHS
from xcit_mm.network.fast.xca_operator import faster_form, xca
from xcit_mm.network.ops.gram import affine_map, map_tokens
from xcit_mm.network.ops.moments import moments

ALL = ('n12', 't12', 's12', 'm24', 'l24')
# Both forms round numbers of as many digits, in places and orders that kernels choose. Where these
# errors meet by chance, a binary digit is lost; a digit more would be a place that only one rounds.
ONE_DIGIT = 2
NAMES = ('y', 'x', 'qkv_weight', 'qkv_bias', 'temperature', 'proj_weight', 'proj_bias')


def parameters(C: int, h: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """qkv, temperature and projection, of the size that trained ones have."""
    shapes = [((3 * C, C), C**-0.5), ((3 * C,), 0.3), ((C, C), C**-0.5), ((C,), 0.3)]
    qkv_weight, qkv_bias, proj_weight, proj_bias = (torch.randn(s) * std for s, std in shapes)
    temperature = torch.rand(h, 1, 1) * 4 + 0.5
    return [t.to(dtype) for t in (qkv_weight, qkv_bias, temperature, proj_weight, proj_bias)]


def tokens(B: int, N: int, C: int, kind: str) -> Tensor:
    x = torch.randn(B, N, C, dtype=torch.float64)
    if kind == 'large mean':
        x += 10 + 3 * torch.randn(C, dtype=torch.float64)
    elif kind == 'outliers':
        x[..., ::37] *= 30
        x[:, ::101] *= 10
    elif kind == 'one large token':
        x[:, N // 2] *= 1e4
    elif kind == 'one large direction':
        direction = F.normalize(torch.randn(C, dtype=torch.float64), dim=0)
        x += 1e3 * (x @ direction)[..., None] * direction
    return x


def value_and_gradients(
    x: Tensor,
    params: list[Tensor],
    cotangent: Tensor,
    form: str | None,
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
) -> list[Tensor]:
    x, *params = (t.to(dtype).requires_grad_() for t in (x, *params))
    with torch.autocast('cpu', autocast, enabled=autocast is not None):
        y = xca(x, *params, form=form)
    gradients = torch.autograd.grad(y, [x, *params], cotangent.to(y.dtype))
    return [t.detach().double() for t in (y, *gradients)]


@pytest.mark.parametrize(
    'B, N, C, h, kind, tolerance',
    [
        (1, 1, 8, 2, 'plain', 1e-10),
        (2, 50, 10, 5, 'plain', 1e-10),
        (2, 4101, 16, 2, 'large mean', 1e-9),
    ],
)
def test_the_forms_are_equal_in_float64(B, N, C, h, kind, tolerance):
    x, params = tokens(B, N, C, kind), parameters(C, h, torch.float64)
    cotangent = torch.randn_like(x)
    direct = value_and_gradients(x, params, cotangent, 'direct', torch.float64)
    gram = value_and_gradients(x, params, cotangent, 'gram', torch.float64)
    for name, a, b in zip(NAMES, direct, gram, strict=True):
        assert (a - b).norm() <= tolerance * max(a.norm().item(), 1e-3), name


def test_biases_may_be_missing():
    x = torch.randn(2, 30, 16)
    qkv_weight, qkv_bias, temperature, proj_weight, proj_bias = parameters(16, 4)
    for form in ('direct', 'gram'):
        none = xca(x, qkv_weight, None, temperature, proj_weight, None, form)
        zero = xca(x, qkv_weight, 0 * qkv_bias, temperature, proj_weight, 0 * proj_bias, form)
        assert relative_error(none, zero) <= 1e-6


@pytest.mark.parametrize('form', ['direct', 'gram'])
def test_derivatives_of_both_forms_are_those_of_their_values(form):
    x, params = tokens(1, 6, 4, 'plain'), parameters(4, 2, torch.float64)
    inputs = [t.requires_grad_() for t in (x, *params)]
    function = partial(xca, form=form)
    batched = dict(check_batched_grad=True, fast_mode=True)
    forward = dict(check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradcheck(function, inputs, **batched, **forward)
    assert torch.autograd.gradgradcheck(function, inputs, **batched, check_fwd_over_rev=True)


@pytest.mark.parametrize('kind', ['plain', 'large mean', 'outliers'])
def test_second_derivatives_are_no_less_exact_than_the_direct_forms(kind):
    x, params = tokens(1, 1000, 64, kind).float().double(), parameters(64, 4)
    directions = [torch.randn_like(t) for t in (x, *params)]
    errors = {}
    exact = second_derivatives(x, params, directions, 'direct', torch.float64)
    for form in ('direct', None):
        values = second_derivatives(x, params, directions, form, torch.float32)
        errors[form] = [relative_error(a, b) for a, b in zip(values, exact, strict=True)]
    for name, direct, chosen in zip(NAMES[1:], errors['direct'], errors[None], strict=False):
        assert chosen <= ONE_DIGIT * direct, name


def second_derivatives(
    x: Tensor, params: list[Tensor], directions: list[Tensor], form: str | None, dtype: torch.dtype
) -> list[Tensor]:
    """The gradient of the slope along directions."""
    inputs = [t.to(dtype).requires_grad_() for t in (x, *params)]
    y = xca(*inputs, form=form)
    gradients = torch.autograd.grad(y.square().mean(), inputs, create_graph=True)
    slope = sum((a * b).sum() for a, b in zip(gradients, directions, strict=True))
    return [t.double() for t in torch.autograd.grad(slope, inputs)]


@pytest.mark.parametrize('kind', ['plain', 'large mean', 'outliers'])
@pytest.mark.parametrize(
    'N, autocast, archs',
    [
        (49, None, ALL),
        (1000, None, ('n12', 't12', 's12', 'l24')),
        (9000, None, ('n12', 's12')),
        (49, torch.bfloat16, ('n12', 't12', 's12')),
        (1500, torch.bfloat16, ('n12', 't12', 's12')),
        (49, torch.float16, ('n12', 't12')),  # slow on CPUs
        (1500, torch.float16, ('n12', 't12')),
    ],
)
def test_errors_are_no_larger_than_the_direct_forms(N, autocast, archs, kind):
    """Root mean square over archs, for every tensor: single values are chance."""
    errors = {'direct': [], None: []}
    for arch in archs:
        C, h = ARCHS[arch].embed_dim, ARCHS[arch].num_heads
        x, params = tokens(1, N, C, kind).float().double(), parameters(C, h)
        cotangent = torch.randn_like(x)
        exact = value_and_gradients(x, params, cotangent, 'direct', torch.float64)
        for form, per_arch in errors.items():
            values = value_and_gradients(x, params, cotangent, form, autocast=autocast)
            per_arch.append([relative_error(a, b) for a, b in zip(values, exact, strict=True)])
    direct, chosen = (torch.tensor(errors[form]).square().mean(0).sqrt() for form in errors)
    for name, a, b in zip(NAMES, direct.tolist(), chosen.tolist(), strict=True):
        assert b <= ONE_DIGIT * a, name


def unchecked_gram(x: Tensor, *params: Tensor) -> Tensor:
    return map_tokens(x, *affine_map(*moments(x), x.shape[1], *params))


@pytest.mark.parametrize('kind', ['one large token', 'one large direction'])
def test_tokens_out_of_the_gram_forms_range_take_the_direct_form(kind):
    N, C, h = 1000, 128, 4
    x, params = tokens(1, N, C, kind).float().double(), parameters(C, h)
    cotangent = torch.randn(1, N, C, dtype=torch.float64)
    exact = value_and_gradients(x, params, cotangent, 'direct', torch.float64)
    direct = value_and_gradients(x, params, cotangent, 'direct')
    for form in (None, 'gram'):
        checked = value_and_gradients(x, params, cotangent, form)
        for name, a, b in zip(NAMES, checked, direct, strict=True):
            assert torch.equal(a, b), name
    unchecked = unchecked_gram(x.float(), *params).double()
    assert relative_error(unchecked, exact[0]) > 10 * relative_error(direct[0], exact[0])


def test_tokens_that_overflow_take_the_direct_form_and_channels_that_see_nothing_do_not():
    x, params = torch.randn(1, 1000, 32), parameters(32, 4)
    assert not unchecked_gram(1e18 * x, *params).isfinite().all()
    for form in (None, 'gram'):
        y = xca(1e18 * x, *params, form=form)
        assert y.isfinite().all() and torch.equal(y, xca(1e18 * x, *params, form='direct'))
    for parameter in params[:2]:  # queries of a pruned model have no digits to lose
        parameter[3:5] = 0
    for inputs in (x, 0 * x):
        assert torch.equal(xca(inputs, *params), unchecked_gram(inputs, *params))


def test_float16_does_not_overflow_at_60000_tokens():
    params = parameters(32, 4)
    x = (100 * torch.randn(1, 60000, 32)).requires_grad_()
    with torch.autocast('cpu', torch.float16):
        y = xca(x, *params)
    assert y.dtype == torch.float16
    y.float().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    exact = xca(x.detach().double(), *(p.double() for p in params), form='direct')
    assert relative_error(y.double(), exact) <= 2e-3


def test_few_tokens_take_the_direct_form_and_many_the_gram_form():
    for arch in ARCHS.values():
        for dtype in (torch.float32, torch.bfloat16):
            for device in ('cpu', 'cuda'):
                assert faster_form(49, arch.embed_dim, dtype, device) == 'direct'
                assert faster_form(16700, arch.embed_dim, dtype, device) == 'gram'
    params = parameters(32, 4)
    for N, form in ((49, 'direct'), (400, 'gram')):
        x = torch.randn(1, N, 32)
        assert torch.equal(xca(x, *params), xca(x, *params, form=form))
    with pytest.raises(ValueError, match=r"form='fast' is not one of \('direct', 'gram'\)"):
        xca(x, *params, form='fast')


def test_the_gram_form_keeps_its_input_alone_and_less_for_second_derivatives():
    x = torch.randn(1, 4000, 64, requires_grad=True)
    params = [p.requires_grad_() for p in parameters(64, 4)]
    kept, kept_twice = {}, {}
    for form in ('direct', 'gram'):
        kept[form] = held_bytes(lambda f=form: xca(x, *params, form=f))
        y = xca(x, *params, form=form)
        penalty = partial(torch.autograd.grad, y.square().sum(), x, create_graph=True)
        kept_twice[form] = held_bytes(penalty)
    y_bytes = x.numel() * x.element_size()
    assert kept['gram'] <= 1.3 * y_bytes  # its output, and matrices of C x C
    assert kept['direct'] >= 6 * y_bytes  # the measure sees what the other form keeps
    assert kept_twice['gram'] <= kept_twice['direct'] / 3


@pytest.mark.parametrize(
    'form, dynamic, backend',
    [('direct', False, 'aot_eager'), ('gram', False, 'aot_eager'), (None, True, 'eager')],
)
def test_it_compiles_without_graph_breaks(form, dynamic, backend):
    params = [p.requires_grad_() for p in parameters(32, 4)]
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: xca(x, *params, form=form), fullgraph=True, dynamic=dynamic, backend=backend
    )
    for N in (60, 400) if dynamic else (400,):
        x = torch.randn(2, N, 32)
        outputs = compiled(x), xca(x, *params, form=form)
        values, expected = ([y, *torch.autograd.grad(y.square().sum(), params)] for y in outputs)
        for a, b in zip(values, expected, strict=True):
            assert relative_error(a, b) <= 1e-5
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16


def test_other_shapes_are_refused():
    weight, bias, temperature, *proj = params = parameters(32, 4)
    x = torch.randn(1, 400, 32)
    with pytest.raises(ValueError, match=r'temperature of shape \(4,\) are not tokens'):
        xca(x, weight, bias, temperature.flatten(), *proj)
    with pytest.raises(ValueError, match=r'x of shape \(400, 32\) and'):
        xca(x[0], *params)
