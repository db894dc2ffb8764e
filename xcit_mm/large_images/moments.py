"""Compute the first and second moments of tokens, which add up over tiles and processes.

The moments are the sums of the products of (1, x) over the tokens x, a matrix of
(C + 1) x (C + 1) values in float64. Cross-covariance attention uses nothing else of an image
(XCiT, section 3.2).
"""

import torch
from torch import Tensor

from ..ops.xca import moments


def sums_of_products(tokens: Tensor) -> Tensor:
    """Return the sums of the products of (1, x) over tokens (..., C).

    The tokens of a tile are centred and multiplied in their own dtype. The results are added in
    float64.
    """
    x = tokens.flatten(0, -2)
    N, C = x.shape
    G, s = (t[0].double() for t in moments(x[None]))
    sums = torch.empty(C + 1, C + 1, dtype=torch.float64, device=x.device)
    sums[0, 0] = N
    sums[0, 1:] = sums[1:, 0] = N * s
    sums[1:, 1:] = N * torch.addr(G, s, s)
    return sums


def covariance_and_mean(sums: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the covariance (C, C), the mean (C,) and the number of tokens."""
    N = sums[0, 0]
    s = sums[0, 1:] / N
    return torch.addr(sums[1:, 1:] / N, s, s, alpha=-1), s, int(N)
