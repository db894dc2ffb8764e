"""3x3 convolutions with a quarter of the multiplications (Lavin and Gray 2016).

The algorithm F(4x4, 3x3): a tile of 4x4 pixels of the output depends on 6x6 pixels of the input.
Both become polynomials that are evaluated at five points and at infinity, where a convolution is a
product: 36 instead of 144 for each pair of channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...network.fast.tracing import computed_dtype, is_intercepted
from ...network.fast.unmodified import is_unmodified

TILE = 4  # rows and columns of the output
TILES_PER_THREAD = 64  # their values fit into the cache of a core
MIN_CHANNELS = 128  # with 64, it is not faster
MIN_TILES = 20  # for fewer, it takes too long to read weights that are four times as large

# The matrices B^T, G and A^T of the paper's section 4.2, for one axis.
OF_PIXELS = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
OF_KERNELS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
OF_PRODUCTS = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


def use_winograd(model: nn.Module) -> None:
    """Replace 3x3 convolutions by :class:`WinogradConv2d`, where they are in float32 on a CPU."""
    for conv in model.modules():
        if is_unmodified(conv, (nn.Conv2d,)) and _fits(conv):
            conv.__class__ = WinogradConv2d
            conv.register_buffer('points', winograd_weight(conv.weight.detach()), persistent=False)


def _fits(conv: nn.Conv2d) -> bool:
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    is_usual = shape == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.padding_mode == 'zeros'
    is_wide = conv.groups == 1 and min(conv.in_channels, conv.out_channels) >= MIN_CHANNELS
    is_slow = conv.weight.device.type == 'cpu' and conv.weight.dtype == torch.float32
    return is_usual and is_wide and is_slow


class WinogradConv2d(nn.Conv2d):
    """A convolution by :func:`winograd_conv2d` where that is faster.

    A pixel that is not finite makes all 4x4 pixels of a tile so, instead of its neighbors only.
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


def winograd_weight(weight: Tensor) -> Tensor:
    """Return the kernels (D, C, 3, 3) of a convolution at the 36 points: (36, C, D)."""
    of_axis = weight.new_tensor(OF_KERNELS)
    return torch.einsum('ay,bx,dcyx->abcd', of_axis, of_axis, weight).flatten(0, 1).contiguous()


def winograd_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with 3x3 kernels, stride 1 and zeros around the map.

    There are no gradients. In float32, the relative error is 2e-6 to 3e-6, up to four times as
    large as in ``F.conv2d`` on channels-last maps.

    Args:
        x: (B, C, H, W), best in channels-last memory format.
        weight: (36, C, D), of :func:`winograd_weight`.
        bias: (D,) or None.

    Returns:
        (B, D, H, W), in channels-last memory format.
    """
    B, _, H, W = x.shape
    rows, columns = -(-H // TILE), -(-W // TILE)  # of tiles
    of_axes = x.new_tensor(OF_PIXELS), x.new_tensor(OF_PRODUCTS)
    matrices = [torch.kron(of_axis, of_axis) for of_axis in of_axes]  # for both axes
    bias = x.new_zeros(weight.shape[2]) if bias is None else bias
    pixels = x.permute(0, 2, 3, 1)
    out = x.new_empty(B, H, W, len(bias))
    tiles = TILES_PER_THREAD * torch.get_num_threads()
    images, height = max(1, tiles // (rows * columns)), max(1, tiles // columns)
    for i in range(0, B, images):
        for row in range(0, rows, height):
            start, end = TILE * row - 1, TILE * min(row + height, rows) + 1  # with a pixel around
            above, below, right = max(-start, 0), max(end - H, 0), TILE * columns + 1 - W
            window = pixels[i : i + images, max(start, 0) : end]
            window = F.pad(window, (0, 0, 1, right, above, below))
            values = _convolve_tiles(window, weight, bias, *matrices)
            inside = out[i : i + images, TILE * row : TILE * (row + height)]
            inside.copy_(values[:, : inside.shape[1], :W])
    return out.permute(0, 3, 1, 2)


def _convolve_tiles(
    window: Tensor, weight: Tensor, bias: Tensor, of_pixels: Tensor, of_products: Tensor
) -> Tensor:
    """Convolve whole tiles, (n, 4 * rows + 2, 4 * columns + 2, C) with the pixels around them."""
    tiles = window.unfold(1, TILE + 2, TILE).unfold(2, TILE + 2, TILE)
    n, rows, columns, C = tiles.shape[:4]
    values = tiles.permute(4, 5, 0, 1, 2, 3).reshape(36, -1)
    values = torch.bmm((of_pixels @ values).view(36, -1, C), weight)
    values = (of_products @ values.view(36, -1)).view(TILE, TILE, n, rows, columns, -1)
    out = window.new_empty(n, rows, TILE, columns, TILE, len(bias))
    torch.add(values.permute(2, 3, 0, 4, 1, 5), bias, out=out)
    return out.flatten(3, 4).flatten(1, 2)
