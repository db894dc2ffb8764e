"""Stacks of convolutions and BatchNorm, as in the patch embedding and the pyramid."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .fast.recompute import recompute
from .fast.tracing import is_exported, is_transformed
from .fast.unmodified import CONVOLUTIONS, is_unmodified


class ConvStack(nn.Sequential):
    """Convolutions, plain or transposed, each but the last followed by BatchNorm and GELU.

    Layers may be grouped in Sequentials. The backward pass recomputes BatchNorm and GELU, and
    inference folds BatchNorm into the preceding convolution. If a layer is modified (see
    :func:`xcit_mm.network.fast.unmodified.is_unmodified`), all layers are called in turn.

    Shape:
        (B, C, H, W) to (B, C', H', W').
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = list(flat_layers(self))
        if not all(map(is_unmodified, layers)) or is_transformed():
            return super().forward(x)
        starts = [i for i, layer in enumerate(layers) if isinstance(layer, CONVOLUTIONS)]
        if torch.is_grad_enabled() or any(layer.training for layer in layers):
            for start, end in pairwise((0, *(i + 1 for i in starts))):  # each ends in a convolution
                x = recompute(_call, x, *layers[start:end], within=self)
            return _call(x, *layers[end:])
        for start, end in zip(starts, [*starts[1:], len(layers)], strict=True):
            x = _infer(x, *layers[start:end])
        return x


def fill_up(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column of maps (B, C, H, W) until ``multiple`` divides the sides."""
    bottom, right = (-n % multiple for n in x.shape[2:])
    if not (is_exported() or bottom or right):
        return x
    return F.pad(x, (0, right, 0, bottom), mode='replicate')


def gelu_norm_conv(
    x: Tensor, norm: nn.Module, conv: nn.Module, *weights: Tensor, within: nn.Module
) -> Tensor:
    """Apply GELU, unmodified BatchNorm and an unmodified convolution with another weight and bias.

    The backward pass recomputes GELU and BatchNorm, which is a layer of ``within``.
    """
    if torch.is_grad_enabled() or norm.training:
        return recompute(lambda x: convolve(conv, norm(F.gelu(x)), *weights), x, within=within)
    # BatchNorm is not folded into the convolution, because that pads with zeros, not shifts.
    factor, shift = (t.to(x.dtype)[:, None, None] for t in batch_norm_affine(norm))
    return convolve(conv, torch.addcmul(shift, gelu_(x), factor, out=x), *weights)


def gelu_(x: Tensor) -> Tensor:
    """Apply GELU in place, to a tensor that nothing else needs."""
    return torch.ops.aten.gelu_(x)


def convolve(conv: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply an unmodified convolution with another weight and bias."""
    if isinstance(conv, nn.ConvTranspose2d):
        geometry = conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
        return F.conv_transpose2d(x, weight, bias, *geometry)
    return conv._conv_forward(x, weight, bias)


def batch_norm_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return factor and shift (C,) of BatchNorm in evaluation, in at least float32."""
    dtype = torch.promote_types(norm.weight.dtype, torch.float32)
    factor = norm.weight.to(dtype) * (norm.running_var.to(dtype) + norm.eps).rsqrt()
    return factor, norm.bias.to(dtype) - norm.running_mean.to(dtype) * factor


def flat_layers(stack: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested Sequentials, or a layer itself."""
    for layer in stack if isinstance(stack, nn.Sequential) else (stack,):
        if is_unmodified(layer, (nn.Sequential,)):
            yield from flat_layers(layer)
        else:
            yield layer


def _call(x: Tensor, *layers: nn.Module) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _infer(
    x: Tensor, conv: nn.Module, norm: nn.Module | None = None, act: nn.Module | None = None
) -> Tensor:
    weight, bias = conv.weight, conv.bias
    if norm is not None:
        factor, shift = batch_norm_affine(norm)
        channels = (1, -1, 1, 1) if isinstance(conv, nn.ConvTranspose2d) else (-1, 1, 1, 1)
        weight = weight * factor.view(channels)
        bias = shift if bias is None else bias * factor + shift
    x = convolve(conv, x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return x if act is None else gelu_(x)
