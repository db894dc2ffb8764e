"""Cross-covariance attention as an operator in two forms with equal values.

The direct form is equation 2 of the paper (:mod:`xcit_mm.network.ops.xca`). The Gram form
(:mod:`xcit_mm.network.ops.gram`) needs half the arithmetic for many tokens.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...base.device import multiplies_bfloat16
from ...base.errors import ArgumentError
from ..ops.gram import map_of, map_tokens, queries_and_keys
from ..ops.moments import with_moments
from ..ops.xca import cross_covariance
from . import gpu
from .tracing import computed_dtype, is_exported, is_intercepted, is_transformed, without_autocast

FORMS = ('direct', 'gram')
# (slope, offset): the Gram form is faster from N = slope * C + offset tokens on, as measured on a
# CPU (docs/performance.md#the-attention-alone). Elsewhere this is an estimate from the number of
# multiplications.
CPU_CROSSOVER = {torch.bfloat16: (3.0, 150), torch.float16: (0.0, 0)}
CPU_CROSSOVER_WIDE = (1.4, 150)  # float32 and float64
CROSSOVER_ELSEWHERE = (2.0, 0)
# The Gram form squares tokens: rounding errors of large directions can hide a small query or key.
# If relative errors are amplified 1e4 times, the error in float32 is three times as large as the
# error of the direct form (docs/performance.md#the-attention-alone).
MAX_AMPLIFICATION = 1e4
# The same for tokens that are multiplied in bfloat16, whose errors are larger from 5e3 on.
MAX_AMPLIFICATION_IN_PARTS = 2e3


def xca(
    x: Tensor,
    qkv_weight: Tensor | None,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    form: str | None = None,
) -> Tensor:
    """Compute cross-covariance attention with its projections.

    Per head, q and k are L2-normalized over the tokens. The d x d attention matrix
    softmax(q^T k * temperature), with a row for each channel of q, mixes the channels of v.

    The Gram form loses digits if single tokens, or a direction that the q and k projections nearly
    cancel, are more than 100 times as large as the rest, and overflows if the squares of tokens do.
    On a CPU, such tokens take the direct form, even with ``form='gram'``. Other devices, compiled
    graphs and transforms of PyTorch do not check for them, because that would synchronize the
    device, or because there are no values yet: pass ``form='direct'`` if you have such tokens.

    Args:
        x: Tokens.
        qkv_weight: Weight of the projection to q, k and v, in this order, each ordered by heads.
            None if x already consists of q, k and v; the direct form is used then.
        qkv_bias: Bias of this projection, or None.
        temperature: Factor of each head.
        proj_weight: Weight of the output projection.
        proj_bias: Bias of the output projection, or None.
        form: 'direct' or 'gram'. Default: the faster form, but the direct form in an exported
            graph, which must hold for any number of tokens, and under a transform of
            ``torch.func`` or forward-mode differentiation, which may hide the values of tokens.

    Shape:
        x: (B, N, C), or (B, N, 3 C) without ``qkv_weight``; qkv_weight: (3 C, C);
        qkv_bias: (3 C,); temperature: (h, 1, 1); proj_weight: (C, C); proj_bias: (C,).
        Output: (B, N, C).

    Raises:
        ValueError: If ``form`` is unknown, or tokens and temperature have other shapes.
    """
    if form is not None and form not in FORMS:
        raise ArgumentError(f'form={form!r} is not one of {FORMS}')
    if x.dim() != 3 or temperature.dim() != 3:
        raise ArgumentError(
            f'x of shape {tuple(x.shape)} and temperature of shape {tuple(temperature.shape)} are '
            'not tokens (B, N, C) and a factor of each head (h, 1, 1)'
        )
    parameters = qkv_weight, qkv_bias, temperature, proj_weight, proj_bias
    if qkv_weight is None:
        return F.linear(cross_covariance(x, temperature), proj_weight, proj_bias)
    if form is None:
        form = 'direct'
        if not (is_exported() or is_transformed()):
            form = faster_form(*x.shape[1:], computed_dtype(x), x.device.type)
    y = _gram(x, parameters) if form == 'gram' else None
    if y is None:  # about 4 N C^2 + 2 N C d multiplications
        mixed = cross_covariance(F.linear(x, qkv_weight, qkv_bias), temperature)
        y = F.linear(mixed, proj_weight, proj_bias)
    return y


def _gram(x: Tensor, parameters: tuple[Tensor | None, ...]) -> Tensor | None:
    def compute() -> Tensor | None:
        return _gram_in_range(x, parameters)

    head_width = x.shape[-1] // parameters[2].shape[0]
    is_known = x.is_cuda and not is_intercepted() and head_width <= gpu.MAX_HEAD_WIDTH
    if is_known and gpu.can_launch(x):
        return gpu.attention(x, compute, *parameters)
    return compute()


def _gram_in_range(x: Tensor, parameters: tuple[Tensor | None, ...]) -> Tensor | None:
    """Compute the Gram form, or return None if it would lose digits of the tokens.

    Only a CPU checks the tokens: other devices would have to synchronize, and in compiled graphs,
    for fake tensors and under transforms there are no values to check.
    """
    is_checked = x.is_cpu and type(x) is Tensor and not is_intercepted()
    x = x.to(computed_dtype(x))
    limits = {False: largest_amplification(x.dtype)}  # by whether tokens are multiplied in parts
    if is_checked and x.dtype == torch.bfloat16 and multiplies_bfloat16():
        limits = {True: MAX_AMPLIFICATION_IN_PARTS, **limits}
    with without_autocast(x):
        for in_parts, limit in limits.items():
            tokens, G, s = with_moments(x, in_parts)
            qk, N = queries_and_keys(G, s, *parameters[:2]), x.shape[1]
            if not is_checked or qk.are_in_range(G, N, parameters[0], limit):
                return map_tokens(tokens, *map_of(qk, N, *parameters))
    return None


def faster_form(N: int, C: int, dtype: torch.dtype, device_type: str) -> str:
    """Return 'direct' for few tokens and 'gram' for many."""
    slope, offset = CROSSOVER_ELSEWHERE
    if device_type in ('cpu', 'meta'):  # tools/get_flops.py counts on the meta device
        slope, offset = CPU_CROSSOVER.get(dtype, CPU_CROSSOVER_WIDE)
    return 'gram' if slope * C + offset <= N else 'direct'


def largest_amplification(dtype: torch.dtype) -> float:
    """Return how much rounding errors may be amplified for tokens of a dtype."""
    wide = torch.promote_types(dtype, torch.float32)  # in which their products are added up
    return MAX_AMPLIFICATION * torch.finfo(dtype).eps / torch.finfo(wide).eps
