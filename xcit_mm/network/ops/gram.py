"""The Gram form of cross-covariance attention: an affine map of the tokens, from their moments.

Queries, keys and values are never computed. That halves the arithmetic for many tokens, and only
the tokens are kept for the backward pass. See :mod:`xcit_mm.network.ops.xca` for the form of the paper.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...device import multiplies_bfloat16
from ..fast.tracing import computed_dtype, is_intercepted, without_autocast
from .moments import from_sums, to_sums, widened, with_moments

EPS = 1e-12  # smallest norm by which a query or key is divided, as in F.normalize

# The Gram form squares tokens: rounding errors of large directions can hide a small query or key.
# If relative errors are amplified 1e4 times, the error in float32 is three times as large as the
# error of the direct form (docs/performance.md).
MAX_AMPLIFICATION = 1e4
# The same for tokens that are multiplied in bfloat16, whose errors are larger from 5e3 on.
MAX_AMPLIFICATION_IN_PARTS = 2e3


def gram_in_range(x: Tensor, *parameters: Tensor | None) -> Tensor | None:
    """Compute the Gram form, or return None if it would lose digits of the tokens.

    Only a CPU checks the tokens: other devices would have to synchronize, and in compiled graphs,
    for fake tensors and under transforms there are no values to check.
    """
    if not (x.device.type == 'cpu' and type(x) is Tensor) or is_intercepted():
        return gram(x, *parameters)
    y = None
    if computed_dtype(x) == torch.bfloat16 and multiplies_bfloat16():
        limit = MAX_AMPLIFICATION_IN_PARTS
        y = gram(x, *parameters, in_parts=True, max_amplification=limit)
    if y is None:
        y = gram(x, *parameters, max_amplification=largest_amplification(computed_dtype(x)))
    return y


def gram(
    x: Tensor,
    *parameters: Tensor | None,
    in_parts: bool = False,
    max_amplification: float | None = None,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor | None:
    """Compute the Gram form, with about 2 N C^2 + 3 C^3 multiplications.

    Args:
        x: Tokens (B, N, C).
        parameters: The parameters of :func:`xcit_mm.network.ops.xca`.
        in_parts: See :func:`~xcit_mm.network.ops.moments.moments`.
        max_amplification: See :func:`affine_map`, also for the result None.
        total: A function that adds sums over the other tokens of the images, if there are any, to
            the sums over x (see :func:`~xcit_mm.network.ops.moments.to_sums`).
    """
    x = x.to(computed_dtype(x))
    with without_autocast(x):
        x, G, s = with_moments(x, in_parts)
        N = x.shape[1]
        if total is not None:
            all_G, s, N = from_sums(total(to_sums(G, s, N)))
            G = all_G.to(G.dtype)
        matrices = affine_map(G, s, N, *parameters, max_amplification=max_amplification)
        return None if matrices is None else map_tokens(x, *matrices)


def largest_amplification(dtype: torch.dtype) -> float:
    """Return the largest amplification that :func:`affine_map` may allow for tokens of a dtype."""
    wide = torch.promote_types(dtype, torch.float32)  # in which their products are added up
    return MAX_AMPLIFICATION * torch.finfo(dtype).eps / torch.finfo(wide).eps


def map_tokens(x: Tensor, M: Tensor, m: Tensor) -> Tensor:
    """Return x M^T + m for tokens x (B, N, C), in their dtype."""
    return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))


def affine_map(
    G: Tensor,
    s: Tensor,
    N: int | Tensor,
    *parameters: Tensor | None,
    max_amplification: float | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return the affine map of tokens that cross-covariance attention is, given their moments.

    With q = x Wq^T + bq, and k and v likewise, only the products of q and k over the tokens are
    needed. They follow from the mean s of the tokens and the Gram matrix of the centered tokens,
    their covariance G = (x - s)^T (x - s) / N. With the means mq = Wq s + bq and mk = Wk s + bk,

        q^T k / N = Wq G Wk^T + mq mk^T.

    The squared norms of q are the diagonal of the same expression with q in place of k: sums of
    two non-negative terms, which keep their digits however large the mean is. The normalized
    attention A does not depend on N; dividing by it keeps all values in the range of float16.
    Mixing v and projecting the output is linear in x and the same for every token:

        y = x M^T + m,  M = sum over heads of Wp_h A_h Wv_h,  m = sum of Wp_h A_h bv_h + bp.

    Args:
        G: Covariance of the tokens, in whose dtype the matrices are multiplied.
        s: Mean of the tokens.
        N: Number of tokens: one number for all images, or one for each, (B, 1).
        parameters: The parameters of :func:`xcit_mm.network.ops.xca`.
        max_amplification: The largest factor by which rounding errors of G may be amplified, or
            None if any may.

    Shape:
        G: (B, C, C), s: (B, C) to M (B, C, C) and m (B, 1, C); None if rounding errors are
        amplified more than ``max_amplification`` times.
    """
    qkv_weight, qkv_bias, temperature, proj_weight, proj_bias = parameters
    dtype = G.dtype
    B, C, _ = G.shape
    h = temperature.shape[0]
    W = qkv_weight.to(dtype)
    b = W.new_zeros(3 * C) if qkv_bias is None else qkv_bias.to(dtype)
    Wqk, Wv, bqk, bv = W[: 2 * C], W[2 * C :], b[: 2 * C], b[2 * C :]

    WG = Wqk @ G  # (B, 2 C, C)
    mean = s @ widened(Wqk).T + widened(bqk)  # (B, 2 C)
    variance = (WG * Wqk).sum(-1)  # (B, 2 C)
    if max_amplification is not None:
        amplification = _amplification(Wqk, G, mean, variance, N)
        if not amplification <= max_amplification:  # NaN is out of range, too
            return None
    WqG, Wk = WG[:, :C].unflatten(1, (h, -1)), Wqk[C:].unflatten(0, (h, -1))
    attn = _normalized(WqG @ Wk.mT, mean, variance, N)  # (B, h, d, d)
    attn = (attn * temperature.to(attn.dtype)).softmax(dim=-1).to(dtype)

    Wp = proj_weight.to(dtype)
    mixed = attn @ Wv.unflatten(0, (h, C // h))  # (B, h, d, C)
    M = Wp @ mixed.reshape(B, C, C)
    m = (attn @ bv.view(h, C // h, 1)).reshape(B, 1, C) @ Wp.T
    if proj_bias is not None:
        m = m + proj_bias.to(dtype)
    return M, m


def _amplification(
    Wqk: Tensor, G: Tensor, mean: Tensor, variance: Tensor, N: int | Tensor
) -> float:
    """Bound the relative error of the squared norms of q and k, divided by the error of G."""
    size = Wqk.square().sum(-1) * torch.linalg.matrix_norm(G)[:, None]  # (B, 2 C)
    return (size / (variance + mean.square()).clamp_min(EPS**2 / N)).max().item()


def _normalized(covariance: Tensor, mean: Tensor, variance: Tensor, N: int | Tensor) -> Tensor:
    """Return the products of the normalized q and k over the tokens, (B, h, d, d)."""
    h, d = covariance.shape[1:3]
    scale = (widened(variance) + mean.square()).clamp_min(EPS**2 / N).rsqrt()  # sqrt(N) / norm
    mean_q, mean_k = (mean * scale).view(-1, 2, h, d, 1).unbind(1)
    scale_q, scale_k = scale.view(-1, 2, h, d, 1).unbind(1)
    return widened(covariance) * scale_q * scale_k.mT + mean_q * mean_k.mT
