"""The step from XCiT's single resolution to the four strides that dense heads expect."""

from torch import nn

from .convolutions import ConvStack


def pyramid_levels(dim: int, patch_size: int) -> tuple[nn.Module, ...]:
    """Build the modules that rescale four maps to strides 4, 8, 16 and 32, in this order.

    Paper, section 4.3 and appendix.

    Args:
        dim: Channels C of the maps.
        patch_size: Stride of the input maps, 8 or 16.

    Shape:
        Module i maps (B, C, H, W) to (B, C, H', W') at stride 2 ** (i + 2), where H' is
        H * patch_size / stride, rounded down.
    """
    if patch_size == 16:
        return (
            ConvStack(_upsample(dim), nn.BatchNorm2d(dim), nn.GELU(), _upsample(dim)),
            ConvStack(_upsample(dim)),
            nn.Identity(),
            nn.MaxPool2d(2),
        )
    return ConvStack(_upsample(dim)), nn.Identity(), nn.MaxPool2d(2), nn.MaxPool2d(4)


def _upsample(dim: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2)
