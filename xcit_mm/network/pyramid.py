"""The step from XCiT's single resolution to the four strides that dense heads expect."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from .conv_stack import ConvStack
from .rows import MULTIPLE


def covered_size(size: Sequence[int]) -> tuple[int, int]:
    """Return the pixels (H, W) that the maps of an image cover with ``pad_maps``."""
    H, W = ((n + MULTIPLE - 1) // MULTIPLE * MULTIPLE for n in size)
    return H, W


def pyramid_levels(dim: int, patch_size: int) -> tuple[nn.Module, ...]:
    """Build the modules that rescale four maps to strides 4, 8, 16 and 32, in this order.

    Paper, section 4.3 and appendix. The stride of the input maps is ``patch_size``: 4, 8 or 16.
    The paper has no maps of stride 4; they are pooled as its maps of stride 8 are.

    Shape:
        (B, C, H, W) to (B, C, H * patch_size / stride, W * patch_size / stride), rounded down.
    """
    upsample = partial(nn.ConvTranspose2d, dim, dim, kernel_size=2, stride=2)
    if patch_size == 16:
        twice = ConvStack(upsample(), nn.BatchNorm2d(dim), nn.GELU(), upsample())
        return twice, ConvStack(upsample()), nn.Identity(), nn.MaxPool2d(2)
    if patch_size == 8:
        return ConvStack(upsample()), nn.Identity(), nn.MaxPool2d(2), nn.MaxPool2d(4)
    return nn.Identity(), nn.MaxPool2d(2), nn.MaxPool2d(4), nn.MaxPool2d(8)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a map (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
