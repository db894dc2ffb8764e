"""Modules in another form, for graphs that are to hold for images of any size."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class MatrixPool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as a product with a matrix from the left and one from the right.

    ONNX has adaptive pooling for maps of a fixed size alone.

    Args:
        height: Of the output.
        width: Of the output.

    Shape:
        (B, C, H, W) to (B, C, height, width).
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    @classmethod
    def like(cls, pool: nn.AdaptiveAvgPool2d) -> 'MatrixPool':
        size = pool.output_size
        return cls(*((size, size) if isinstance(size, int) else size))

    def forward(self, x: Tensor) -> Tensor:
        return _bins(self.height, x.shape[2], x) @ x @ _bins(self.width, x.shape[3], x).T


def plain_upsample(upsample: nn.Module) -> nn.Module:
    """PyTorch's module in the place of mmseg's, which computes a size that a graph would freeze."""
    if upsample.size or upsample.scale_factor is None:
        return upsample
    return nn.Upsample(
        scale_factor=upsample.scale_factor,
        mode=upsample.mode,
        align_corners=upsample.align_corners,
    )


def replace_modules(
    model: nn.Module, replacements: Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]
) -> None:
    """Replace modules of some kinds in place.

    Args:
        model: What they are in.
        replacements: By the kind of a module, what gives another one in its place.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) in replacements:
                setattr(module, name, replacements[type(child)](child))


def _bins(number: int, length: int, like: Tensor) -> Tensor:
    """(number, length): row i takes the mean of the places of bin i, divided as PyTorch does.

    They go from i * length / number, rounded down, to (i + 1) * length / number, rounded up.
    """
    i = torch.arange(number, device=like.device)[:, None]
    start, end = i * length // number, ((i + 1) * length + number - 1) // number
    place = torch.arange(length, device=like.device)
    inside = ((place >= start) & (place < end)).to(like.dtype)
    return inside / (end - start).to(like.dtype)
