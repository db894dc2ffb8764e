"""Tokens (B, N, C) of B images, and maps (B, C, H, W) of them, N = H * W."""

from torch import Tensor
from torch.nn import functional as F

from .fast.tracing import is_exported


def tokens_to_map(x: Tensor, H: int, W: int) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, H, W) in channels-last memory format."""
    return x.unflatten(1, (H, W)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a map (B, C, H, W) as tokens (B, N, C), a view if its memory is channels-last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def fill_up(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column of maps (B, C, H, W) until ``multiple`` divides the sides."""
    bottom, right = (-n % multiple for n in x.shape[2:])
    if not (is_exported() or bottom or right):
        return x
    return F.pad(x, (0, right, 0, bottom), mode='replicate')
