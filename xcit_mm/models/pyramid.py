"""From the single resolution of XCiT to the four strides that dense heads expect.

Paper, section 4.3 and appendix: maps of four layers are brought to strides 4, 8, 16 and 32
by transposed convolutions and max-pooling.
"""

from torch import nn

from .layers import ConvStack


def pyramid_levels(dim: int, patch_size: int) -> tuple[nn.Module, ...]:
    """Build the four rescaling modules, for strides 4, 8, 16 and 32 in this order.

    Args:
        dim: Channels C of the maps, in and out.
        patch_size: Stride of the maps that come in, 8 or 16.

    Shape:
        Module i takes (B, C, H, W) at stride ``patch_size`` to (B, C, H', W') at stride
        2 ** (i + 2): H' is H * patch_size / stride, rounded down.
    """
    if patch_size == 16:
        return (
            ConvStack(_upsample(dim), nn.BatchNorm2d(dim), nn.GELU(), _upsample(dim)),
            ConvStack(_upsample(dim)),
            nn.Identity(),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
    return (
        ConvStack(_upsample(dim)),
        nn.Identity(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.MaxPool2d(kernel_size=4, stride=4),
    )


def _upsample(dim: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2)
