"""Add up the first and second moments of tokens over tiles and processes.

What adds up are the sums of the products of (1, x) over the tokens x, a matrix of
(C + 1) x (C + 1) values in float64. Cross-covariance attention uses nothing else of an image
(XCiT, section 3.2).
"""

import torch
from torch import Tensor

from ..ops.xca import moments


def sums_of_products(tokens: Tensor) -> Tensor:
    """Return the sums (1, C + 1, C + 1) of the products of (1, x) over tokens (..., C).

    The tokens of a tile are centred and multiplied in their own dtype. The results are added in
    float64.
    """
    x = tokens.flatten(0, -2)
    return to_sums(*moments(x[None]), len(x))


def to_sums(G: Tensor, s: Tensor, N: int) -> Tensor:
    """Return the sums (B, C + 1, C + 1) of N tokens with covariance (B, C, C) and mean (B, C)."""
    s = s.double()[:, None]
    first = torch.cat((torch.ones_like(s[..., :1]), s), dim=2)
    others = torch.cat((s.mT, G.double() + s.mT @ s), dim=2)
    return N * torch.cat((first, others), dim=1)


def from_sums(sums: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the covariance (B, C, C) and the mean (B, C) in float64, and the number of tokens."""
    N = sums[:, :1, :1].detach()
    means = sums / N
    s = means[:, :1, 1:]
    return means[:, 1:, 1:] - s.mT @ s, s.squeeze(1), int(N[0])
