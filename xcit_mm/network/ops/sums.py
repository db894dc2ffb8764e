"""Sums over the tokens of an image in parts: tiles, rows of processes, or tokens with data.

Each part contributes the sum of the outer products of (1, x) with itself over its tokens x, a
matrix (C + 1, C + 1) in float64.

Letters in shapes: B images, N tokens, C channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..fast.tracing import computed_dtype, without_autocast
from .gram import affine_map, map_tokens
from .moments import moments, to_widest, with_moments


def xca_of_part(x: Tensor, total: Callable[[Tensor], Tensor], *parameters: Tensor | None) -> Tensor:
    """Compute cross-covariance attention for some of the tokens of images.

    Args:
        x: Some of the tokens (B, N, C).
        total: A function that adds the sums over all other tokens to the sums over x.
        parameters: The parameters of :func:`.xca`.
    """
    x = x.to(computed_dtype(x))
    with without_autocast(x):
        x, G, s = with_moments(x)
        all_G, s, N = from_sums(total(to_sums(G, s, x.shape[1])))
        return map_tokens(x, *affine_map(all_G.to(G.dtype), s, N, *parameters))


def sums_of_products(tokens: Tensor) -> Tensor:
    """Return the sums (1, C + 1, C + 1) of the products of (1, x) over tokens (..., C).

    The tokens are centered and multiplied in their own dtype.
    """
    x = tokens.flatten(0, -2)
    return to_sums(*moments(x[None]), len(x))


def to_sums(G: Tensor, s: Tensor, N: int) -> Tensor:
    """Return the sums (B, C + 1, C + 1) of N tokens with covariance (B, C, C) and mean (B, C)."""
    s = to_widest(s)[:, None]
    first = torch.cat((torch.ones_like(s[..., :1]), s), dim=2)
    others = torch.cat((s.mT, to_widest(G) + s.mT @ s), dim=2)
    return N * torch.cat((first, others), dim=1)


def from_sums(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the widened covariance (B, C, C), mean (B, C) and number of tokens (B, 1)."""
    N = sums[:, :1, :1].detach()
    means = sums / N
    s = means[:, :1, 1:]
    return means[:, 1:, 1:] - s.mT @ s, s.squeeze(1), N.squeeze(1)
