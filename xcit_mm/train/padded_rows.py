"""Images of several sizes in a batch, whose padding the attention leaves out."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..network.rows import RowsWithGaps


class PaddedRows(RowsWithGaps):
    """The rows of a batch in which images are padded at the bottom and at the right.

    In evaluation, an image whose sides are multiples of the patch size gets the tokens that it gets
    alone: padding does not enter the sums of the attention, the local interaction reads zeros
    there, and positions are relative to the image. BatchNorm in training adds up all tokens.

    Args:
        sizes: (H, W) of each image in pixels.
        patch_size: Pixels of a side of a patch.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], patch_size: int) -> None:
        self._sizes = [tuple(-(-n // patch_size) for n in size) for size in sizes]

    def position(self, encode: Callable[..., Tensor], H: int, W: int) -> Tensor:
        """Return the encoded positions (B, C, H, W), and remember which tokens have data."""
        parts, valid = [], []
        for h, w in self._sizes:
            padding = 0, W - w, 0, H - h
            part = encode(h, w)
            parts.append(F.pad(part, padding))
            valid.append(F.pad(part.new_ones(1, 1, h, w), padding))
        self.valid = torch.cat(valid)
        return torch.cat(parts)

    def with_data(self, x: Tensor) -> Tensor:
        return x * self.valid.flatten(1)[..., None]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sums (B, C + 1, C + 1) of the tokens with data; those of others are zero."""
        x = x.clone()
        x[:, 0, 0] = self.valid.flatten(1).sum(1)
        return x
