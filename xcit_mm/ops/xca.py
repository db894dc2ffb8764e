"""Cross-covariance attention as an operator: two forms of one value, and the choice.

The direct form is equation 2 of the paper (XCiT, arXiv 2106.09681, section 3.2) as written.
The Gram form never computes queries, keys and values: it needs half the arithmetic for many
tokens and keeps nothing but its input for the backward pass.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from ..errors import ArgumentError
from .modes import computed_dtype

EPS = 1e-12  # below this norm a query or key is not stretched to length 1, as in F.normalize

# The Gram form is the faster one from N = slope * C + offset tokens on. CPU: where the measured
# times cross (docs/performance.md); in float16, where matrix products are slow, for any N.
# Elsewhere: where the arithmetic 2 N C^2 + 3 C^3 is clearly below 4 N C^2 + 2 N C d; estimated.
CROSSOVER = {
    ('cpu', torch.float32): (1.4, 150),
    ('cpu', torch.float64): (1.4, 150),
    ('cpu', torch.bfloat16): (3.0, 150),
    ('cpu', torch.float16): (0.0, 0),
}
CROSSOVER_ELSEWHERE = (2.0, 0)


def xca(
    x: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    attn_drop: float = 0.0,
    form: str | None = None,
) -> Tensor:
    """Cross-covariance attention with its projections.

    Per head, q and k are L2-normalised over the tokens; the d x d attention is
    softmax(q^T k * temperature), row by row of q's channels, and mixes the channels of v.

    Args:
        x: Tokens.
        qkv_weight: Projection to q, k and v, in this order, each head by head.
        qkv_bias: Its bias, or None.
        temperature: One factor a head.
        proj_weight: Projection of the output. Scale its rows, and the bias, to scale the
            output (LayerScale).
        proj_bias: Its bias, or None.
        attn_drop: Dropout probability on the attention matrix.
        form: 'direct' or 'gram'; None takes the one that was measured to be faster.

    Shape:
        x: (B, N, C); qkv_weight: (3 C, C); qkv_bias: (3 C,); temperature: (h, 1, 1);
        proj_weight: (C, C); proj_bias: (C,). Output: (B, N, C).

    Raises:
        ValueError: If ``form`` is neither.

    Under autocast both forms return its dtype. The Gram form sums the products of tokens and
    handles the C x C matrices in float32.
    """
    if form is None:
        form = faster_form(x.shape[1], x.shape[2], computed_dtype(x), x.device.type)
    if form not in FORMS:
        raise ArgumentError(f'form={form!r} is not one of {tuple(FORMS)}')
    return FORMS[form](x, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, attn_drop)


def faster_form(N: int, C: int, dtype: torch.dtype, device_type: str) -> str:
    """'direct' for few tokens, 'gram' for many."""
    slope, offset = CROSSOVER.get((device_type, dtype), CROSSOVER_ELSEWHERE)
    return 'gram' if slope * C + offset <= N else 'direct'


def _direct(
    x: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    attn_drop: float,
) -> Tensor:
    """The paper's equation 2, word for word; about 4 N C^2 + 2 N C d multiplications."""
    B, N, C = x.shape
    h = temperature.shape[0]
    qkv = F.linear(x, qkv_weight, qkv_bias).reshape(B, N, 3, h, C // h)
    q, k, v = qkv.permute(2, 0, 3, 4, 1)  # (B, h, d, N) each
    q = F.normalize(q, dim=-1, eps=EPS)
    k = F.normalize(k, dim=-1, eps=EPS)
    attn = (q @ k.transpose(-2, -1)) * temperature  # (B, h, d, d)
    attn = F.dropout(attn.softmax(dim=-1), attn_drop, training=attn_drop > 0)
    x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
    return F.linear(x, proj_weight, proj_bias)


def _gram(
    x: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    attn_drop: float,
) -> Tensor:
    """The same without q, k and v; about 2 N C^2 + 3 C^3 multiplications.

    With q = x Wq^T + bq and so on, q and k are needed only in their products over the tokens.
    These follow from the moments of the tokens, G = x^T x / N (C x C) and s, the mean of x:

        q^T k / N = Wq G Wk^T + (Wq s + bq) bk^T + bq (Wk s)^T

    and the squared norms of the columns of q are the diagonal of the same with q for k. The
    normalised attention does not see the factor N, which keeps everything in the range of
    float16 for any number of tokens. What follows, the mixing of v and the projection, is
    linear in x and the same for every token: one C x C matrix for each image,

        M = sum over heads of Wp_h A_h Wv_h,    m = sum over heads of Wp_h A_h bv_h + bp,

    and y = x M^T + m.
    """
    B, _, C = x.shape
    h = temperature.shape[0]
    x = x.to(computed_dtype(x))
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        x, G, s = _Moments.apply(x)  # (B, N, C), (B, C, C), (B, C)
        W = qkv_weight.to(dtype)
        b = W.new_zeros(3 * C) if qkv_bias is None else qkv_bias.to(dtype)
        Wqk, Wv, bqk, bv = W[: 2 * C], W[2 * C :], b[: 2 * C], b[2 * C :]

        WG = Wqk @ G  # (B, 2 C, C)
        Ws = s @ Wqk.T  # (B, 2 C)
        squares = (WG * Wqk).sum(-1) + (2 * Ws + bqk) * bqk  # of the norms of q and k, / N
        scale = squares.clamp_min(EPS**2 / x.shape[1]).rsqrt()

        def heads(
            t: Tensor,
        ) -> tuple[Tensor, Tensor]:  # (..., 2 C, n) to q's and k's (..., h, d, n)
            return t.unflatten(-2, (2, h, C // h)).unbind(-4)

        (WqG, _), (_, Wk) = heads(WG), heads(Wqk)
        (mean_q, _), (_, Wk_s) = heads((Ws + bqk)[..., None]), heads(Ws[..., None])
        (bq, bk), (scale_q, scale_k) = heads(bqk[:, None]), heads(scale[..., None])
        attn = WqG @ Wk.mT + mean_q * bk.mT + bq * Wk_s.mT  # (B, h, d, d)
        attn = attn * scale_q * scale_k.mT * temperature.to(dtype)
        attn = F.dropout(attn.softmax(dim=-1), attn_drop, training=attn_drop > 0)

        Wp = proj_weight.to(dtype)
        mixed = attn @ Wv.unflatten(0, (h, C // h))  # (B, h, d, C)
        M = Wp @ mixed.reshape(B, C, C)
        m = (attn @ bv.view(h, C // h, 1)).reshape(B, 1, C) @ Wp.T
        if proj_bias is not None:
            m = m + proj_bias.to(dtype)
        return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))


FORMS = {'direct': _direct, 'gram': _gram}


class _Moments(Function):
    """x to (x, x^T x / N, mean of x over the tokens), the moments in at least float32.

    x is handed through so that the backward pass meets, in one place, the gradient of what is
    made of x afterwards and those of its moments: it costs one product instead of the two
    that autograd takes for x^T x, and no sum of two gradients.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x)
        N = x.shape[1]
        dtype = torch.promote_types(x.dtype, torch.float32)
        return x.view_as(x), _gram_matrix(x).div_(N), x.mean(1, dtype=dtype)

    @staticmethod
    def backward(ctx, dx: Tensor, dG: Tensor, ds: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        N = x.shape[1]
        # 1 / N stays outside of the matrix, which float16 would flush to zero.
        dx = torch.baddbmm(dx, x, (dG + dG.mT).to(x.dtype), alpha=1 / N)
        return dx.add_((ds / N)[:, None].to(x.dtype))


def _gram_matrix(x: Tensor) -> Tensor:
    """(B, N, C) to x^T x, (B, C, C), summed and given out in at least float32."""
    if x.dtype in (torch.float16, torch.bfloat16):
        if x.is_cuda and 'dtype' in torch.ops.aten.bmm.overloads():  # PyTorch 2.8 and later
            return torch.bmm(x.mT, x, out_dtype=torch.float32)
        x = x.float()
    if x.device.type != 'cpu':
        return x.mT @ x
    # It is symmetric: in stripes from the diagonal to the right, mirrored, 5/8 of the products.
    B, _, C = x.shape
    G = x.new_empty(B, C, C)
    width = -(-C // 4)
    for i in range(0, C, width):
        stripe = x[..., i : i + width].mT @ x[..., i:]
        G[:, i : i + width, i:] = stripe
        G[:, i:, i : i + width] = stripe.mT
    return G
