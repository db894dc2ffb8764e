"""Cross-covariance attention (XCA) as an operator in two forms with equal values.

The direct form is equation 2 of the paper (XCiT, arXiv 2106.09681, section 3.2) as written. The
Gram form never computes queries, keys and values: it needs half the arithmetic for many tokens,
and keeps only its input for the backward pass.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from ..device import multiplies_bfloat16
from ..errors import ArgumentError
from .tracing import (
    computed_dtype,
    is_captured,
    is_intercepted,
    is_transformed,
    without_autocast,
)

# On CUDA, products of 16-bit matrices can be returned in float32: PyTorch 2.8 and later.
BMM_HAS_OUT_DTYPE = 'dtype' in torch.ops.aten.bmm.overloads()
SAMPLED_TOKENS = 256
CPU_CHUNK = 2048  # tokens that are centred and multiplied while they are in the cache
CPU_PART = 512  # 16-bit tokens whose sum of products is rounded to 16 bits
EPS = 1e-12  # smallest norm by which a query or key is divided, as in F.normalize

# (slope, offset): the Gram form is faster from N = slope * C + offset tokens on, as measured on a
# CPU (docs/performance.md). Elsewhere this is an estimate from the number of multiplications.
CPU_CROSSOVER = {torch.bfloat16: (3.0, 150), torch.float16: (0.0, 0)}
CPU_CROSSOVER_WIDE = (1.4, 150)  # float32 and float64
CROSSOVER_ELSEWHERE = (2.0, 0)

# The Gram form squares tokens: rounding errors of large directions can hide a small query or key.
# If relative errors are amplified 1e4 times, those in float32 are three times as large as those of
# the direct form (docs/performance.md).
MAX_AMPLIFICATION = 1e4
# The same for tokens that are multiplied in bfloat16, whose errors are larger from 5e3 on.
MAX_AMPLIFICATION_IN_PARTS = 2e3


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

    Per head, q and k are L2-normalised over the tokens. The d x d attention matrix
    softmax(q^T k * temperature), with a row for each channel of q, mixes the channels of v.

    The Gram form loses digits if single tokens, or a direction that q and k hardly see, are more
    than 100 times as large as the rest, and overflows if the squares of tokens do. On a CPU, such
    tokens take the direct form. Other devices and compiled graphs do not check for them, which
    would synchronise the device: pass ``form='direct'``.

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
    arguments = x, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias
    if form is None:
        exported = hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()
        form = 'direct'
        if not (exported or is_transformed()):
            form = faster_form(*x.shape[1:], computed_dtype(x), x.device.type)
        # Whether x is in range depends on its values; a fake tensor, which is a subclass, has none.
        if form == 'gram' and type(x) is Tensor and x.device.type == 'cpu' and not is_intercepted():
            y = None
            if computed_dtype(x) == torch.bfloat16 and multiplies_bfloat16():
                y = _gram(*arguments, MAX_AMPLIFICATION_IN_PARTS, in_parts=True)
            if y is None:
                y = _gram(*arguments, MAX_AMPLIFICATION)
            return _direct(*arguments) if y is None else y
    if form not in FORMS:
        raise ArgumentError(f'form={form!r} is not one of {tuple(FORMS)}')
    return FORMS[form](*arguments)


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


def _direct(x, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias) -> Tensor:
    """Compute equation 2, with about 4 N C^2 + 2 N C d multiplications."""
    qkv = F.linear(x, qkv_weight, qkv_bias)  # (B, N, 3 C)
    return F.linear(cross_covariance(qkv, temperature), proj_weight, proj_bias)


def _gram(
    x,
    qkv_weight,
    qkv_bias,
    temperature,
    proj_weight,
    proj_bias,
    max_amplification=None,
    in_parts=False,
) -> Tensor | None:
    """Compute the Gram form, with about 2 N C^2 + 3 C^3 multiplications.

    Return None if rounding errors are amplified more than ``max_amplification`` times.
    """
    x = x.to(computed_dtype(x))
    with without_autocast(x):
        x, G, s = with_moments(x, in_parts)
        parameters = qkv_weight, qkv_bias, temperature, proj_weight, proj_bias
        if max_amplification is not None and not in_parts:
            max_amplification *= torch.finfo(x.dtype).eps / torch.finfo(G.dtype).eps
        map_of_tokens = mixing(G, s, x.shape[1], *parameters, max_amplification)
        if map_of_tokens is None:
            return None
        M, m = map_of_tokens
        return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))


def mixing(
    G: Tensor,
    s: Tensor,
    N: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    max_amplification: float | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return the affine map of tokens that cross-covariance attention is, given their moments.

    With q = x Wq^T + bq, and k and v likewise, only the products of q and k over the tokens are
    needed. They follow from the mean s of the tokens and the Gram matrix of the centred tokens,
    their covariance G = (x - s)^T (x - s) / N. With the means mq = Wq s + bq and mk = Wk s + bk,

        q^T k / N = Wq G Wk^T + mq mk^T.

    The squared norms of q are the diagonal of the same expression with q in place of k: sums of
    two non-negative terms, which keep their digits however large the mean is. The normalised
    attention A does not depend on N; dividing by it keeps all values in the range of float16.
    Mixing v and projecting the output is linear in x and the same for every token:

        y = x M^T + m,  M = sum over heads of Wp_h A_h Wv_h,  m = sum of Wp_h A_h bv_h + bp.

    Args:
        G: Covariance of the tokens, in whose dtype the matrices are multiplied.
        s: Mean of the tokens.
        N: Number of tokens.
        qkv_weight: As for :func:`xca`, like the next four.
        qkv_bias: See there.
        temperature: See there.
        proj_weight: See there.
        proj_bias: See there.
        max_amplification: The largest factor by which rounding errors of G may be amplified, or
            None if any may.

    Shape:
        G: (B, C, C), s: (B, C) to M (B, C, C) and m (B, 1, C); None if rounding errors are
        amplified more than ``max_amplification`` times.
    """
    dtype = G.dtype
    B, C, _ = G.shape
    h = temperature.shape[0]
    W = qkv_weight.to(dtype)
    b = W.new_zeros(3 * C) if qkv_bias is None else qkv_bias.to(dtype)
    Wqk, Wv, bqk, bv = W[: 2 * C], W[2 * C :], b[: 2 * C], b[2 * C :]

    WG = Wqk @ G  # (B, 2 C, C)
    mean = s @ _widened(Wqk).T + _widened(bqk)  # (B, 2 C)
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


FORMS = {'direct': _direct, 'gram': _gram}


def _amplification(Wqk: Tensor, G: Tensor, mean: Tensor, variance: Tensor, N: int) -> float:
    """Bound the relative error of the squared norms of q and k, divided by that of G."""
    size = Wqk.square().sum(-1) * torch.linalg.matrix_norm(G)[:, None]  # (B, 2 C)
    return (size / (variance + mean.square()).clamp_min(EPS**2 / N)).max().item()


def _normalized(covariance: Tensor, mean: Tensor, variance: Tensor, N: int) -> Tensor:
    """Return the products of the normalised q and k over the tokens, (B, h, d, d)."""
    h, d = covariance.shape[1:3]
    scale = (_widened(variance) + mean.square()).clamp_min(EPS**2 / N).rsqrt()  # sqrt(N) / norm
    mean_q, mean_k = (mean * scale).view(-1, 2, h, d, 1).unbind(1)
    scale_q, scale_k = scale.view(-1, 2, h, d, 1).unbind(1)
    return _widened(covariance) * scale_q * scale_k.mT + mean_q * mean_k.mT


def _widened(t: Tensor) -> Tensor:
    # If the mean of the tokens is large, large terms cancel in q and k and in the gradients.
    return t.double() if t.device.type in ('cpu', 'cuda') else t


def moments(x: Tensor, in_parts: bool = False) -> tuple[Tensor, Tensor]:
    """Return the covariance over the tokens, in at least float32, and the mean of x (B, N, C).

    With ``in_parts``, the CPU multiplies the tokens in their 16-bit dtype.
    """
    N = x.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    # Centring by the mean of a sample saves a pass over all tokens; G and the mean are corrected
    # afterwards. The centre is rounded to the dtype of x, so that both dtypes represent it.
    sample = x[:, :: (N - 1) // SAMPLED_TOKENS + 1]
    centre = sample.mean(1, keepdim=True, dtype=dtype).to(x.dtype).to(dtype)  # (B, 1, C)
    products, sums = (_sums_of_parts if in_parts else _centred_sums)(x, centre)
    shift = sums / N  # (B, 1, C)
    G = torch.baddbmm(products, shift.mT, shift, beta=1 / N, alpha=-1)
    return G, (_widened(centre) + _widened(shift)).squeeze(1)


def with_moments(x: Tensor, in_parts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return x (B, N, C), its covariance (B, C, C) and its mean (B, C), with one gradient of x."""
    # A compiler's debugging backend would differentiate the function only once, and silently. Where
    # its sums have no derivative, the function stays: other backends refuse second derivatives.
    is_composed = is_captured() and not (_has_wide_bmm(x) and torch.compiler.is_compiling())
    if torch.is_grad_enabled() and not (is_composed or is_transformed()):
        return _Moments.apply(x, in_parts)
    return x, *moments(x, in_parts)


class _Moments(Function):
    """Map x to (x, *moments(x)), so that one backward function sums all gradients of x.

    The backward function is differentiable: it consists of differentiable operations on x and on
    the mean, which is an output of this function.
    """

    @staticmethod
    def forward(ctx, x: Tensor, in_parts: bool) -> tuple[Tensor, Tensor, Tensor]:
        G, s = moments(x, in_parts)
        ctx.save_for_backward(x, s)
        return x.view_as(x), G, s

    @staticmethod
    def backward(ctx, dx: Tensor, dG: Tensor, ds: Tensor) -> tuple[Tensor, None]:
        x, s = ctx.saved_tensors
        N = x.shape[1]
        rounded = (dG + dG.mT).to(x.dtype)  # once: the same values multiply x and s
        # The factor 1 / N stays out of the matrix, where float16 would flush it to zero.
        dx = torch.baddbmm(dx, x, rounded, alpha=1 / N)
        of_mean = ds[:, None] - s[:, None] @ rounded.to(s.dtype)
        return dx.add_((of_mean / N).to(x.dtype)), None


def _has_wide_bmm(x: Tensor) -> bool:
    """Return whether a product of such matrices of 16 bits can be returned in float32."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and BMM_HAS_OUT_DTYPE


def _centred_sums(x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x - centre)^T (x - centre), (B, C, C), and the sum of x - centre, (B, 1, C)."""
    B, _, C = x.shape
    if x.device.type not in ('cpu', 'meta') or is_captured() or is_transformed():
        # This product has no derivative.
        widen = _has_wide_bmm(x) and not (torch.is_grad_enabled() or is_transformed())
        x = x - centre.to(x.dtype) if widen else x - centre
        products = torch.bmm(x.mT, x, out_dtype=centre.dtype) if widen else x.mT @ x
        return products, x.sum(1, keepdim=True, dtype=centre.dtype)
    # The matrix is symmetric: four stripes, from the diagonal to the right, take 5/8 of the
    # multiplications and are then mirrored.
    products, sums = centre.new_zeros(B, C, C), torch.zeros_like(centre)
    width = -(-C // 4)
    for chunk in x.split(CPU_CHUNK, dim=1) if x.is_cpu else (x,):
        chunk = chunk - centre
        sums += chunk.sum(1, keepdim=True)
        for i in range(0, C, width):
            products[:, i : i + width, i:].baddbmm_(chunk[..., i : i + width].mT, chunk[..., i:])
    for i in range(0, C, width):
        end = i + width
        products[:, end:, i:end] = products[:, i:end, end:].mT
    return products, sums


def _sums_of_parts(x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`_centred_sums` does for tokens that are multiplied in 16 bits.

    The product of each part is rounded to 16 bits. If parts are short, their errors cancel out.
    """
    products, sums = 0.0, 0.0
    for chunk in x.split(CPU_CHUNK, dim=1):
        chunk = F.pad(chunk - centre.to(x.dtype), (0, 0, 0, -chunk.shape[1] % CPU_PART))
        parts = chunk.unflatten(1, (-1, CPU_PART))
        products = products + (parts.mT @ parts).sum(1, dtype=centre.dtype)
        sums = sums + chunk.sum(1, keepdim=True, dtype=centre.dtype)
    return products, sums
