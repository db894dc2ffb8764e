"""Refuse backbones whose layers may read more of an image than those of XCiT."""

from torch import nn

from ..errors import ArgumentError
from ..models import XCiT
from ..models.convolutions import flat_layers
from ..models.layers import XCABlock
from ..models.unmodified import PYTORCH_LAYERS, is_plain


def require_streamable(backbone: nn.Module) -> None:
    """Refuse a backbone that is in training, or whose layers have hooks or were replaced."""
    if getattr(type(backbone), 'forward', None) is not XCiT.forward:
        raise ArgumentError(f'a {type(backbone).__name__} cannot be streamed: only an XCiT can')
    if backbone.training:
        raise ArgumentError('the backbone is in training: call backbone.eval() first')
    for i, block in enumerate(backbone.blocks[: backbone.out_indices[-1] + 1]):
        if not (block.can_infer_in_place() and is_plain(block, (XCABlock,))):
            raise _not_plain(f'blocks.{i}')
    require_known_reach(backbone)


def require_known_reach(backbone: XCiT) -> None:
    """Refuse replaced convolutions, which may reach further than those of XCiT."""
    blocks = backbone.blocks[: backbone.out_indices[-1] + 1]
    parts = {f'blocks.{i}.local_mp': [*b.local_mp.children()] for i, b in enumerate(blocks)}
    for name in ('patch_embed.proj', 'fpn1', 'fpn2', 'fpn3', 'fpn4'):
        parts[name] = list(flat_layers(backbone.get_submodule(name)))
    for name, layers in parts.items():
        for layer in layers:
            convolves = isinstance(layer, nn.Conv2d)
            is_known = is_plain(layer, (*PYTORCH_LAYERS, nn.Identity, nn.MaxPool2d))
            if not is_known or (convolves and layer.kernel_size + layer.dilation != (3, 3, 1, 1)):
                raise _not_plain(name)


def _not_plain(name: str) -> ArgumentError:
    return ArgumentError(
        f'{name} of the backbone has hooks or replaced layers, whose reach is not known: merge '
        'them into its weights first'
    )
