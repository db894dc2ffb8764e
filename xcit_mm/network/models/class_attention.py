"""Class attention: layers in which a class token attends to the tokens of an image.

They follow the blocks in classifiers and DINO models (section 3.3; Touvron et al., "Going deeper
with image transformers", arXiv 2103.17239). Parameter names match the authors' release.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import Mlp


class ClassAttention(nn.Module):
    """Attention of the class token to itself and all other tokens, at linear cost.

    Shape:
        Class tokens (B, 1, C) and tokens (B, N, C) to (B, 1, C).
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, token: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.queries(token, x)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def queries(self, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query (B, h, 1, d), the keys and the values (B, h, 1 + N, d)."""
        q, k, v = self.qkv(torch.cat((token, x), dim=1)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        return q[:, :, :1], k, v


class ClassAttentionBlock(nn.Module):
    """Class attention and an MLP for the class token, each with norm, scale and residual.

    The other tokens do not attend to each other: each changes on its own (:meth:`next_tokens`).

    Args:
        dim: The number of channels C.
        num_heads: The number of heads h.
        eta: The initial value of LayerScale.
        tokens_norm: Whether the second norm applies to all tokens, or only to the class token.

    Shape:
        Class tokens (B, 1, C) and tokens (B, N, C) to the same.
    """

    def __init__(self, dim: int, num_heads: int, eta: float, tokens_norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = ClassAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.tokens_norm = tokens_norm

    def forward(self, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        read = self.attn(self.norm1(token), self.norm1(x))
        return self.next_token(token, read), self.next_tokens(x)

    def next_token(self, token: Tensor, read: Tensor) -> Tensor:
        """Return the next class token, given the output ``read`` (B, 1, C) of the attention."""
        token = self.norm2(token + self.gamma1 * read)
        return token + self.gamma2 * self.mlp(token)

    def next_tokens(self, x: Tensor) -> Tensor:
        """Return the tokens for the next block.

        In the release, the attention returns the normalized tokens unchanged. The MLP skips them,
        so its residual connection adds the tokens to themselves.
        """
        x = x + self.gamma1 * self.norm1(x)
        return 2 * (self.norm2(x) if self.tokens_norm else x)
