"""Wide convolutions of 3x3 pixels by Winograd's algorithm."""

import torch
from torch import Tensor, nn

from ..models.unmodified import is_plain
from ..ops.tracing import computed_dtype, is_intercepted
from .winograd import TILE, winograd_conv2d, winograd_weight

MIN_CHANNELS = 128  # with 64, it is not faster
MIN_TILES = 20  # its weights are four times as large, and would be read for little


def use_winograd(model: nn.Module) -> None:
    """Let convolutions of 3x3 pixels multiply less, in float32 on a CPU."""
    for conv in model.modules():
        if is_plain(conv, (nn.Conv2d,)) and _fits(conv):
            conv.__class__ = WinogradConv2d
            conv.register_buffer('points', winograd_weight(conv.weight.detach()), persistent=False)


def _fits(conv: nn.Conv2d) -> bool:
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    is_usual = shape == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.padding_mode == 'zeros'
    is_wide = conv.groups == 1 and min(conv.in_channels, conv.out_channels) >= MIN_CHANNELS
    is_slow = conv.weight.device.type == 'cpu' and conv.weight.dtype == torch.float32
    return is_usual and is_wide and is_slow


class WinogradConv2d(nn.Conv2d):
    """A convolution by :func:`xcit_mm.fusion.winograd.winograd_conv2d` where that is faster.

    A pixel that is not finite makes the 4x4 pixels of a tile so, not only its neighbours.
    """

    def forward(self, x: Tensor) -> Tensor:
        with_graph = torch.is_grad_enabled() and x.requires_grad
        if is_intercepted() or with_graph or x.dim() != 4:
            return super().forward(x)
        B, _, H, W = x.shape
        tiles = B * -(-H // TILE) * -(-W // TILE)
        is_small = tiles < MIN_TILES or tiles * TILE**2 > 2 * B * H * W  # mostly padding
        if is_small or x.device.type != 'cpu' or computed_dtype(x) != torch.float32:
            return super().forward(x)
        return winograd_conv2d(x, self.points, self.bias)
