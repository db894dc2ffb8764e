"""Stacks of convolutions and BatchNorm, as in the patch embedding and the pyramid."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .fast.form import fast_form
from .fast.unmodified import flat_layers
from .rows import ALONE, Rows


class ConvStack(nn.Sequential):
    """Convolutions, plain or transposed, each but the last followed by BatchNorm and GELU.

    Layers may be grouped in Sequentials.

    Shape:
        (B, C, H, W) to (B, C', H', W').
    """

    def forward(self, x: Tensor, rows: Rows = ALONE) -> Tensor:
        if fast := fast_form(self, x, rows):
            return fast.conv_stack(flat_layers(self), x)
        if rows is ALONE:
            return super().forward(x)
        for layer in flat_layers(self):
            if isinstance(layer, nn.Conv2d):
                x = rows.convolve(layer, x)
            else:
                x = rows.normalize(layer, x) if isinstance(layer, _BatchNorm) else layer(x)
        return x
