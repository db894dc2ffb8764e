"""Convolutions with kernels of 3x3 pixels in a quarter of the products (Lavin and Gray 2016).

The algorithm F(4x4, 3x3): a tile of 4x4 pixels of the output depends on 6x6 pixels of the input.
Both become polynomials that are evaluated at five points and at infinity, where a convolution is a
product: 36 instead of 144 for each pair of channels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 4  # rows and columns of the output
TILES_PER_THREAD = 64  # whose values stay in the cache of a core

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


def winograd_weight(weight: Tensor) -> Tensor:
    """Return the kernels (D, C, 3, 3) of a convolution at the 36 points: (36, C, D)."""
    of_axis = weight.new_tensor(OF_KERNELS)
    return torch.einsum('ay,bx,dcyx->abcd', of_axis, of_axis, weight).flatten(0, 1).contiguous()


def winograd_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with kernels of 3x3 pixels, with stride 1 and zeros around the map.

    There are no gradients. In float32, the relative error is 2e-6 to 3e-6, up to four times that of
    ``F.conv2d`` on channels-last maps.

    Args:
        x: (B, C, H, W), best in channels-last memory format.
        weight: (36, C, D), of :func:`winograd_weight`.
        bias: (D,) or None.

    Returns:
        (B, D, H, W), in channels-last memory format.
    """
    B, C, H, W = x.shape
    D = weight.shape[2]
    rows, columns = -(-H // TILE), -(-W // TILE)  # of tiles
    of_pixels, of_products = (_both_axes(matrix, x) for matrix in (OF_PIXELS, OF_PRODUCTS))
    bias = x.new_zeros(D) if bias is None else bias
    pixels = x.permute(0, 2, 3, 1)
    out = x.new_empty(B, H, W, D)
    tiles = TILES_PER_THREAD * torch.get_num_threads()
    images, height = max(1, tiles // (rows * columns)), max(1, tiles // columns)
    for i in range(0, B, images):
        for row in range(0, rows, height):
            n, number = min(images, B - i), min(height, rows - row)
            start, end = TILE * row - 1, TILE * (row + number) + 1  # with a pixel around
            above, below, right = max(-start, 0), max(end - H, 0), TILE * columns + 1 - W
            window = F.pad(pixels[i : i + n, max(start, 0) : end], (0, 0, 1, right, above, below))
            of_image, of_row, of_column, of_channel = window.stride()
            strides = of_row, of_column, of_image, TILE * of_row, TILE * of_column, of_channel
            values = window.as_strided((6, 6, n, number, columns, C), strides).reshape(36, -1)
            values = torch.bmm((of_pixels @ values).view(36, -1, C), weight)
            values = (of_products @ values.view(36, -1)).view(TILE, TILE, n, number, columns, D)
            part = x.new_empty(n, number, TILE, columns, TILE, D)
            torch.add(values.permute(2, 3, 0, 4, 1, 5), bias, out=part)
            inside = out[i : i + n, TILE * row : TILE * (row + number)]
            inside.copy_(part.flatten(3, 4).flatten(1, 2)[:, : inside.shape[1], :W])
    return out.permute(0, 3, 1, 2)


def _both_axes(matrix: tuple[tuple[int, ...], ...], like: Tensor) -> Tensor:
    """Return the Kronecker product of a matrix with itself."""
    of_axis = like.new_tensor(matrix)
    return torch.kron(of_axis, of_axis)
