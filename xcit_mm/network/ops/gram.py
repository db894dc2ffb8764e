"""The Gram form of cross-covariance attention: an affine map of the tokens, from their moments.

Queries, keys and values are never computed. That halves the arithmetic for many tokens, and only
the tokens are kept for the backward pass. :mod:`.xca` has the form of the paper.

With q = x Wq^T + bq, and k and v likewise, only the products of q and k over the tokens are needed.
They follow from the mean s of the tokens and the Gram matrix of the centered tokens, their
covariance G = (x - s)^T (x - s) / N. With the means mq = Wq s + bq and mk = Wk s + bk,

    q^T k / N = Wq G Wk^T + mq mk^T.

The squared norms of q are the diagonal of the same expression with q in place of k: sums of two
non-negative terms, which keep their digits however large the mean is. The normalized attention A
does not depend on N; dividing by N keeps all values in the range of float16. Mixing v and
projecting the output is linear in x and the same for every token:

    y = x M^T + m,  M = sum over heads of Wp_h A_h Wv_h,  m = sum of Wp_h A_h bv_h + bp.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .moments import to_widest
from .xca import EPS


class QueriesAndKeys(NamedTuple):
    """What the attention needs to know about q and k, which have 2 C channels together."""

    products: Tensor  # (B, 2 C, C), Wqk G: their covariance with the tokens
    mean: Tensor  # (B, 2 C)
    variance: Tensor  # (B, 2 C)

    def are_in_range(
        self, G: Tensor, N: int | Tensor, qkv_weight: Tensor, max_amplification: float
    ) -> bool:
        """Return whether rounding errors of the covariance G are amplified less than a limit.

        This compares a bound of the relative error of the squared norms, divided by the error of G,
        with the limit. A bound that is NaN is out of range.
        """
        W = qkv_weight[: self.mean.shape[1]].to(G.dtype)
        size = W.square().sum(-1) * torch.linalg.matrix_norm(G)[:, None]  # (B, 2 C)
        amplification = size / (self.variance + self.mean.square()).clamp_min(EPS**2 / N)
        return amplification.max().item() <= max_amplification

    def attention(self, N: int | Tensor, qkv_weight: Tensor, temperature: Tensor) -> Tensor:
        """Return the matrices with which each head mixes its channels, (B, h, d, d)."""
        h, (_, _, C) = temperature.shape[0], self.products.shape
        Wk = qkv_weight[C : 2 * C].to(self.products.dtype).unflatten(0, (h, -1))
        covariance = to_widest(self.products[:, :C].unflatten(1, (h, -1)) @ Wk.mT)
        scale = (to_widest(self.variance) + self.mean.square()).clamp_min(EPS**2 / N).rsqrt()
        mean_q, mean_k = (self.mean * scale).view(-1, 2, h, C // h, 1).unbind(1)
        scale_q, scale_k = scale.view(-1, 2, h, C // h, 1).unbind(1)  # sqrt(N) / norm
        cosines = covariance * scale_q * scale_k.mT + mean_q * mean_k.mT
        return (cosines * temperature.to(cosines.dtype)).softmax(dim=-1).to(self.products.dtype)


def queries_and_keys(
    G: Tensor, s: Tensor, qkv_weight: Tensor, qkv_bias: Tensor | None
) -> QueriesAndKeys:
    """Project the covariance G (B, C, C) and the mean s (B, C) of tokens to q and k."""
    C = G.shape[1]
    W = qkv_weight[: 2 * C].to(G.dtype)
    mean = s @ to_widest(W).T
    if qkv_bias is not None:
        mean = mean + to_widest(qkv_bias[: 2 * C].to(G.dtype))
    products = W @ G
    return QueriesAndKeys(products, mean, (products * W).sum(-1))


def affine_map(
    G: Tensor, s: Tensor, N: int | Tensor, *parameters: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return cross-covariance attention as an affine map of the tokens, given their moments.

    Args:
        G: Covariance of the tokens. The matrices are multiplied in its dtype.
        s: Mean of the tokens.
        N: Number of tokens: one number for all images, or one for each, (B, 1).
        parameters: The parameters of :func:`.xca`.

    Shape:
        G: (B, C, C), s: (B, C) to M (B, C, C) and m (B, 1, C).
    """
    return map_of(queries_and_keys(G, s, *parameters[:2]), N, *parameters)


def map_of(
    qk: QueriesAndKeys,
    N: int | Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return M and m of :func:`affine_map`, given its queries and keys."""
    dtype, (_, _, C) = qk.products.dtype, qk.products.shape
    attn = qk.attention(N, qkv_weight, temperature)
    Wv, Wp = qkv_weight[2 * C :].to(dtype), proj_weight.to(dtype)
    M = Wp @ (attn @ Wv.unflatten(0, attn.shape[1:3])).flatten(1, 2)
    m = M.new_zeros(len(M), 1, C)
    if qkv_bias is not None:
        bv = qkv_bias[2 * C :].to(dtype)
        m = (attn @ bv.view(*attn.shape[1:3], 1)).view(-1, 1, C) @ Wp.T
    return M, m if proj_bias is None else m + proj_bias.to(dtype)


def map_tokens(x: Tensor, M: Tensor, m: Tensor) -> Tensor:
    """Return x M^T + m for tokens x (B, N, C), in their dtype."""
    return torch.baddbmm(m.to(x.dtype), x, M.mT.to(x.dtype))
