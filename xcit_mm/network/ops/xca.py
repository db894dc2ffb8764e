"""Cross-covariance attention (XCA) as an operator in two forms with equal values.

The direct form is equation 2 of the paper (XCiT, arXiv 2106.09681, section 3.2) as written. The
Gram form (:mod:`xcit_mm.network.ops.gram`) needs half the arithmetic for many tokens.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import ArgumentError
from ..fast.tracing import computed_dtype, is_exported, is_transformed
from .gram import EPS, gram_in_range

FORMS = ('direct', 'gram')
# (slope, offset): the Gram form is faster from N = slope * C + offset tokens on, as measured on a
# CPU (docs/performance.md). Elsewhere this is an estimate from the number of multiplications.
CPU_CROSSOVER = {torch.bfloat16: (3.0, 150), torch.float16: (0.0, 0)}
CPU_CROSSOVER_WIDE = (1.4, 150)  # float32 and float64
CROSSOVER_ELSEWHERE = (2.0, 0)


def xca(
    x: Tensor,
    qkv_weight: Tensor,
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
    On a CPU, such tokens take the direct form, also with ``form='gram'``. Other devices, compiled
    graphs and transforms of PyTorch do not check for them, because that would synchronize the
    device, or because there are no values yet: pass ``form='direct'`` if you have such tokens.

    Args:
        x: Tokens.
        qkv_weight: Weight of the projection to q, k and v, in this order, each head by head.
        qkv_bias: Bias of this projection, or None.
        temperature: Factor of each head.
        proj_weight: Weight of the output projection.
        proj_bias: Bias of the output projection, or None.
        form: 'direct' or 'gram'. Default: the faster form, but the direct form in an exported
            graph, which must hold for any number of tokens, and under a transform of
            ``torch.func`` or forward-mode differentiation, which may hide the values of tokens.

    Shape:
        x: (B, N, C); qkv_weight: (3 C, C); qkv_bias: (3 C,); temperature: (h, 1, 1);
        proj_weight: (C, C); proj_bias: (C,). Output: (B, N, C).

    Raises:
        ValueError: If ``form`` is unknown.
    """
    parameters = qkv_weight, qkv_bias, temperature, proj_weight, proj_bias
    if form is None:
        form = 'direct'
        if not (is_exported() or is_transformed()):
            form = faster_form(*x.shape[1:], computed_dtype(x), x.device.type)
    if form not in FORMS:
        raise ArgumentError(f'form={form!r} is not one of {FORMS}')
    y = gram_in_range(x, *parameters) if form == 'gram' else None
    if y is None:  # about 4 N C^2 + 2 N C d multiplications
        mixed = cross_covariance(F.linear(x, qkv_weight, qkv_bias), temperature)
        y = F.linear(mixed, proj_weight, proj_bias)
    return y


def faster_form(N: int, C: int, dtype: torch.dtype, device_type: str) -> str:
    """Return 'direct' for few tokens and 'gram' for many."""
    slope, offset = CROSSOVER_ELSEWHERE
    if device_type in ('cpu', 'meta'):  # tools/get_flops.py counts on the meta device
        slope, offset = CPU_CROSSOVER.get(dtype, CPU_CROSSOVER_WIDE)
    return 'gram' if slope * C + offset <= N else 'direct'


def cross_covariance(qkv: Tensor, temperature: Tensor) -> Tensor:
    """Compute equation 2 of the paper from q, k and v, (B, N, 3 C), without the projections."""
    B, N, _ = qkv.shape
    h = temperature.shape[0]
    q, k, v = qkv.reshape(B, N, 3, h, -1).permute(2, 0, 3, 4, 1)  # (B, h, d, N) each
    q, k = F.normalize(q, dim=-1, eps=EPS), F.normalize(k, dim=-1, eps=EPS)
    attn = (q @ k.transpose(-2, -1)) * temperature  # (B, h, d, d)
    return (attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(B, N, -1)
