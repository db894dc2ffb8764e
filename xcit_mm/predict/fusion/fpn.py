"""An FPN that upsamples the maps of XCiT itself.

The last step of XCiT's pyramid, a transposed convolution, and the lateral convolution of the FPN
are linear, with nothing in between: one matrix product computes both. Letters in shapes: B images,
H and W rows and columns of the map that is upsampled, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...network import XCiT
from ...network.conv_stack import ConvStack
from ...network.fast.cpu import batch_norm_affine, linear_gelu
from ...network.fast.tracing import is_traced
from ...network.fast.unmodified import flat_layers, is_unmodified


def fuse_fpn(model: nn.Module) -> None:
    """Replace an FPN by one that adds its maps in place and upsamples the maps of XCiT itself."""
    neck, backbone = getattr(model, 'neck', None), model.backbone
    if type(neck).__name__ != 'FPN' or not is_unmodified(neck, (type(neck),)):
        return
    if neck.upsample_cfg.get('mode') != 'nearest' or 'scale_factor' in neck.upsample_cfg:
        return
    # A hook may keep the output of a lateral convolution, to which the fused FPN adds in place.
    if not all(is_unmodified(m, (type(m),)) for m in neck.lateral_convs.modules()):
        return
    neck.__class__ = type('FusedFPN', (_FusedFPN, type(neck)), {})
    is_read_once = neck.add_extra_convs != 'on_input'
    if type(backbone) is not XCiT or not is_read_once or not is_unmodified(backbone, (XCiT,)):
        return
    names = [f'fpn{i}' for i in range(1, 5)][backbone.start_level :]
    for i, lateral in enumerate(neck.lateral_convs):
        level = i + neck.start_level
        upsample, norm = getattr(backbone, names[level]), backbone.out_norms[level]
        is_pure = type(norm) is nn.Identity and set(lateral._modules) == {'conv'}
        if is_pure and _can_upsample(upsample) and _is_pointwise(lateral.conv):
            neck.lateral_convs[i] = UpsamplingLateral(upsample, lateral.conv)
            setattr(backbone, names[level], nn.Identity())


def _can_upsample(stack: nn.Module) -> bool:
    layers = flat_layers(stack) if is_unmodified(stack, (ConvStack,)) else []
    convolutions = [layer for layer in layers if isinstance(layer, nn.ConvTranspose2d)]
    return bool(layers) and all(map(is_unmodified, layers)) and layers[-1] is convolutions[-1]


def _is_pointwise(conv: nn.Module) -> bool:
    return is_unmodified(conv) and conv.kernel_size == (1, 1) == conv.stride and conv.groups == 1


class UpsamplingLateral(nn.Module):
    """Transposed convolutions with kernel and stride 2, and a 1x1 convolution after the last.

    Matrix products turn a token into a block of pixels. The blocks stay apart until
    :func:`from_blocks` writes them into a map.

    Shape:
        (B, C, H, W) to (B, H, W, 2, 2, C') for one transposed convolution, (B, H, W, 2, 2, 2, 2,
        C') for two: rows and columns of the block, then rows and columns of each of its pixels.
    """

    def __init__(self, upsample: nn.Module, lateral: nn.Conv2d) -> None:
        super().__init__()
        layers = flat_layers(upsample)
        self.weights = nn.ParameterList()
        for i, layer in enumerate(layers):
            if not isinstance(layer, nn.ConvTranspose2d):
                continue
            weight, bias = _wide(layer.weight), _wide(layer.bias)  # (C, C', 2, 2), (C',)
            if layer is layers[-1]:
                last = _wide(lateral.weight).flatten(1)  # (C'', C')
                weight = torch.einsum('cdyx,ed->ceyx', weight, last)
                bias = last @ bias if lateral.bias is None else last @ bias + _wide(lateral.bias)
            else:
                factor, shift = map(_wide, batch_norm_affine(layers[i + 1]))
                weight, bias = weight * factor.view(1, -1, 1, 1), bias * factor + shift
            self.weights.append(weight.permute(2, 3, 1, 0).flatten(0, 2).to(layer.weight))
            self.weights.append(bias.repeat(4).to(layer.weight))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
        *inner, last = zip(self.weights[::2], self.weights[1::2], strict=True)
        for weight, bias in inner:
            x = linear_gelu(x, weight, bias).unflatten(-1, (2, 2, -1))
        return F.linear(x, *last).unflatten(-1, (2, 2, -1))


def _wide(x: Tensor) -> Tensor:
    return x.cpu().double()  # not every GPU has float64


class _FusedFPN:
    """The forward pass of an FPN of mmdet or mmseg."""

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        number = len(self.lateral_convs)
        laterals: list[Tensor] = [None] * number
        for i in reversed(range(number)):
            x = self.lateral_convs[i](inputs[i + self.start_level])
            coarser = laterals[i + 1] if i + 1 < number else None
            laterals[i] = from_blocks(x, coarser) if x.dim() > 4 else add_coarser(x, coarser)
        maps = [conv(x) for conv, x in zip(self.fpn_convs, laterals, strict=False)]
        if not self.add_extra_convs:
            while len(maps) < self.num_outs:
                maps.append(F.max_pool2d(maps[-1], 1, stride=2))
            return tuple(maps)
        sources = {
            'on_input': inputs[self.backbone_end_level - 1],
            'on_lateral': laterals[-1],
            'on_output': maps[-1],
        }
        x = sources[self.add_extra_convs]
        for conv in self.fpn_convs[number:]:
            is_first = len(maps) == number
            maps.append(conv(x if is_first or not self.relu_before_extra_convs else F.relu(x)))
            x = maps[-1]
        return tuple(maps)


def from_blocks(x: Tensor, coarser: Tensor | None) -> Tensor:
    """Write blocks of pixels into a map (B, C, H, W), and add the map of half its resolution."""
    last = x.dim() - 1
    # (B, H, rows of a block, W, columns of a block, C)
    x = x.permute(0, 1, *range(3, last, 2), 2, *range(4, last, 2), last)
    middle = last // 2  # between the dimensions of rows and of columns
    if coarser is not None:
        shape = list(x.shape)
        shape[middle] = shape[last - 1] = 1  # of the last upsampling
        coarser = coarser.permute(0, 2, 3, 1).reshape(shape)
        # A plain sum would have the memory format of x, and need a copy to become a map.
        x = x + coarser if is_traced() else torch.add(x, coarser, out=x.new_empty(x.shape))
    return x.contiguous().flatten(middle + 1, last - 1).flatten(1, middle).permute(0, 3, 1, 2)


def add_coarser(x: Tensor, coarser: Tensor | None) -> Tensor:
    """Add a map of half the resolution to a map (B, C, H, W), in place where sizes are even."""
    if coarser is None:
        return x
    B, C, H, W = x.shape
    if (2 * coarser.shape[2], 2 * coarser.shape[3]) != (H, W):
        return x.add_(F.interpolate(coarser, size=(H, W)))
    x.view(B, C, H // 2, 2, W // 2, 2).add_(coarser[:, :, :, None, :, None])
    return x
