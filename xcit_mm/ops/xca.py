"""Cross-covariance attention as an operator: two forms of one value, and the choice.

The direct form is equation 2 of the paper (XCiT, arXiv 2106.09681, section 3.2) as written.
The Gram form never computes queries, keys and values: it needs half the arithmetic for many
tokens and keeps nothing but its input for the backward pass.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..errors import ArgumentError
from .tracing import computed_dtype, is_captured, is_exported, is_intercepted, without_autocast

# Products of 16-bit matrices come in float32 on CUDA: PyTorch 2.8 and later.
BMM_WIDENS = 'dtype' in torch.ops.aten.bmm.overloads()
SAMPLED_TOKENS = 256
CPU_CHUNK = 2048  # tokens, centred and multiplied while they are in the cache
EPS = 1e-12  # below this norm a query or key is not stretched to length 1, as in F.normalize

# The Gram form is the faster one from N = slope * C + offset tokens on. CPU: where the measured
# times cross (docs/performance.md); in float16, where matrix products are slow, for any N.
# Elsewhere: where the arithmetic 2 N C^2 + 3 C^3 is clearly below 4 N C^2 + 2 N C d; estimated.
CROSSOVER = {
    ('cpu', torch.float32): (1.4, 150),
    ('cpu', torch.float64): (1.4, 150),
    ('cpu', torch.bfloat16): (3.0, 150),
    ('cpu', torch.float16): (0.0, 0),
    ('meta', torch.float32): (1.4, 150),  # on which a CPU's operations are counted
}
CROSSOVER_ELSEWHERE = (2.0, 0)

# The Gram form squares tokens, so that rounding errors of the largest ones hide a channel of q or
# k that hardly sees those. By how much at most: at 1e4 its errors in float32, measured against
# float64, are still three times those of the direct form (docs/performance.md).
MAX_AMPLIFICATION = 1e4


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
        form: 'direct' or 'gram'. None takes the one that was measured to be faster, except that
            it takes the direct one in an exported graph, which is for any number of tokens, and
            on a CPU where the tokens are out of the Gram form's range (see below).

    Shape:
        x: (B, N, C); qkv_weight: (3 C, C); qkv_bias: (3 C,); temperature: (h, 1, 1);
        proj_weight: (C, C); proj_bias: (C,). Output: (B, N, C).

    Raises:
        ValueError: If ``form`` is neither.

    Under autocast both forms return its dtype. The Gram form sums the products of tokens and
    handles the C x C matrices in float32.

    The Gram form is as accurate as the direct one for tokens of similar size, such as those
    behind a LayerNorm. It loses digits where single tokens, or a direction that q and k hardly
    see, are more than 100 times as large as the rest, and it overflows where the squares of
    tokens do, in float32 from about 1e18 on. On a CPU ``form=None`` sees this in the moments
    of the tokens and takes the direct form instead. On other devices and in a compiled graph it
    does not look, which would make the device wait: pass ``form='direct'`` for such tokens.
    """
    arguments = x, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, attn_drop
    if form is None:
        form = _chosen_form(x)
        if form == 'gram' and _can_look_at(x):
            y = _gram(*arguments, max_amplification=MAX_AMPLIFICATION)
            return _direct(*arguments) if y is None else y
    if form not in FORMS:
        raise ArgumentError(f'form={form!r} is not one of {tuple(FORMS)}')
    return FORMS[form](*arguments)


def _can_look_at(x: Tensor) -> bool:
    """Whether a choice may follow from values: subclasses, as fake tensors are, may have none."""
    return type(x) is Tensor and x.device.type == 'cpu' and not is_intercepted()


def _chosen_form(x: Tensor) -> str:
    if is_exported():
        return 'direct'
    return faster_form(x.shape[1], x.shape[2], computed_dtype(x), x.device.type)


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
    attn = F.dropout(attn.softmax(dim=-1), attn_drop)
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
    max_amplification: float | None = None,
) -> Tensor | None:
    """The same without q, k and v; about 2 N C^2 + 3 C^3 multiplications.

    Returns None where rounding errors are amplified more than ``max_amplification`` times.

    With q = x Wq^T + bq and so on, q and k are needed only in their products over the tokens.
    These follow from the moments of the tokens, their mean s and their covariance
    G = (x - s)^T (x - s) / N, the Gram matrix of the centred tokens (C x C). With the means of
    q and k, mq = Wq s + bq and mk = Wk s + bk,

        q^T k / N = Wq G Wk^T + mq mk^T,

    and the squared norms of the columns of q are the diagonal of the same with q for k: sums
    of two non-negative terms, which keep their digits however large the mean is. The
    normalised attention A does not see the factor N, which keeps everything in the range of
    float16 for any number of tokens. What follows, the mixing of v and the projection, is
    linear in x and the same for every token: one C x C matrix for each image,

        M = sum over heads of Wp_h A_h Wv_h,    m = sum over heads of Wp_h A_h bv_h + bp,

    and y = x M^T + m.
    """
    B, _, C = x.shape
    h = temperature.shape[0]
    x = x.to(computed_dtype(x))
    dtype = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        if torch.is_grad_enabled() and not torch.jit.is_tracing():
            x, G, s = _Moments.apply(x)
        else:
            G, s = _moments(x)  # (B, C, C), (B, C)
        W = qkv_weight.to(dtype)
        b = W.new_zeros(3 * C) if qkv_bias is None else qkv_bias.to(dtype)
        Wqk, Wv, bqk, bv = W[: 2 * C], W[2 * C :], b[: 2 * C], b[2 * C :]

        WG = Wqk @ G  # (B, 2 C, C)
        mean = s @ _exact(Wqk).T + _exact(bqk)  # (B, 2 C)
        variance = (WG * Wqk).sum(-1)  # (B, 2 C)
        if max_amplification is not None:
            limit = max_amplification * torch.finfo(x.dtype).eps / torch.finfo(dtype).eps
            if not _amplification(Wqk, G, mean, variance, x.shape[1]) <= limit:  # nor is NaN
                return None
        WqG, Wk = WG[:, :C].unflatten(1, (h, -1)), Wqk[C:].unflatten(0, (h, -1))
        attn = _normalized(WqG @ Wk.mT, mean, variance, x.shape[1])
        attn = attn * temperature.to(attn.dtype)
        attn = attn.softmax(dim=-1).to(dtype)  # (B, h, d, d)
        attn = F.dropout(attn, attn_drop)

        Wp = proj_weight.to(dtype)
        mixed = attn @ Wv.unflatten(0, (h, C // h))  # (B, h, d, C)
        M = Wp @ mixed.reshape(B, C, C)
        m = (attn @ bv.view(h, C // h, 1)).reshape(B, 1, C) @ Wp.T
        if proj_bias is not None:
            m = m + proj_bias.to(dtype)
        return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))


def _amplification(Wqk: Tensor, G: Tensor, mean: Tensor, variance: Tensor, N: int) -> float:
    """How much larger the relative error of a squared norm of q or k is than that of G, at most.

    The error of Wq G Wq^T follows the size of the weights and of G, its value may be far below.
    """
    size = Wqk.square().sum(-1) * torch.linalg.matrix_norm(G)[:, None]  # (B, 2 C)
    return (size / (variance + mean.square()).clamp_min(EPS**2 / N)).max().item()


def _normalized(covariance: Tensor, mean: Tensor, variance: Tensor, N: int) -> Tensor:
    """Products of the normalised q and k over the tokens, (B, h, d, d), from their moments.

    Shape:
        covariance of q and k: (B, h, d, d); mean and variance of (q, k): (B, 2 C).
    """
    h, d = covariance.shape[1:3]
    scale = (_exact(variance) + mean.square()).clamp_min(EPS**2 / N).rsqrt()  # sqrt(N) / norm
    mean_q, mean_k = (mean * scale).view(-1, 2, h, d, 1).unbind(1)
    scale_q, scale_k = scale.view(-1, 2, h, d, 1).unbind(1)
    return _exact(covariance) * scale_q * scale_k.mT + mean_q * mean_k.mT


def _exact(t: Tensor) -> Tensor:
    """Convert to float64 where the device has it: small tensors in which large terms cancel.

    When the means of the tokens dominate, those of q and k may nearly vanish, and the gradients
    of the norms and of the products nearly do.
    """
    return t.double() if t.device.type in ('cpu', 'cuda') else t


FORMS = {'direct': _direct, 'gram': _gram}


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of x over the tokens, in at least float32, and its exact mean."""
    N = x.shape[1]
    # Centred by the mean of some tokens, which spares a pass over all; the rest follows.
    wide = torch.promote_types(x.dtype, torch.float32)
    sample = x[:, :: (N - 1) // SAMPLED_TOKENS + 1]
    near = sample.mean(1, keepdim=True, dtype=wide).to(x.dtype).to(wide)  # exact in both
    products, sums = _centred_sums(x, near)
    rest = sums / N  # (B, 1, C)
    G = torch.baddbmm(products, rest.mT, rest, beta=1 / N, alpha=-1)
    return G, (_exact(near) + _exact(rest)).squeeze(1)


class _Moments(Function):
    """x to (x, *_moments(x)).

    x is handed through so that the backward pass meets, in one place, the gradient of what is
    made of x afterwards and those of its moments: it costs one product instead of the two
    that autograd takes for x^T x, and no sum of two gradients.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        G, s = _moments(x)
        ctx.save_for_backward(x, s)
        return x.view_as(x), G, s

    @staticmethod
    @once_differentiable
    def backward(ctx, dx: Tensor, dG: Tensor, ds: Tensor) -> Tensor:
        x, s = ctx.saved_tensors
        N = x.shape[1]
        rounded = (dG + dG.mT).to(x.dtype)  # once: x - s meets one matrix
        # 1 / N stays outside of the matrix, which float16 would flush to zero.
        dx = torch.baddbmm(dx, x, rounded, alpha=1 / N)
        of_mean = ds[:, None] - s[:, None] @ rounded.to(s.dtype)
        return dx.add_((of_mean / N).to(x.dtype))


def _centred_sums(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """(x - s)^T (x - s), (B, C, C), and the sum of x - s over the tokens, (B, 1, C).

    Both in the dtype of s (B, 1, C), which is at least float32.
    """
    B, _, C = x.shape
    if x.is_cuda and x.dtype != s.dtype and BMM_WIDENS:
        x = x - s.to(x.dtype)
        products = torch.bmm(x.mT, x, out_dtype=s.dtype)
        return products, x.sum(1, keepdim=True, dtype=s.dtype)
    if x.device.type not in ('cpu', 'meta') or is_captured():
        x = x - s
        return x.mT @ x, x.sum(1, keepdim=True)
    # It is symmetric: in stripes from the diagonal to the right, mirrored, 5/8 of the products.
    products, rest = s.new_zeros(B, C, C), torch.zeros_like(s)
    width = -(-C // 4)
    for chunk in x.split(CPU_CHUNK, dim=1):
        chunk = chunk - s
        rest += chunk.sum(1, keepdim=True)
        for i in range(0, C, width):
            products[:, i : i + width, i:].baddbmm_(chunk[..., i : i + width].mT, chunk[..., i:])
    for i in range(0, C, width):
        end = i + width
        products[:, end:, i:end] = products[:, i:end, end:].mT
    return products, rest
