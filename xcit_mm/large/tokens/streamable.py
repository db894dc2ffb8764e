"""Checks that the layers of a backbone read no more of an image than the layers of XCiT."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...base.errors import ArgumentError
from ...network import XCiT
from ...network.fast.unmodified import PYTORCH_LAYERS, flat_layers, is_known_block, is_unmodified
from ...network.layers import LPI, XCA, XCABlock
from ...network.models.image_xcit import ImageXCiT


def require_streamable(backbone: nn.Module) -> None:
    """Refuse a backbone that is in training, or whose layers have hooks or were replaced."""
    _require_plain(backbone)
    if backbone.training:
        raise ArgumentError('the backbone is in training: call backbone.eval() first')


def require_trainable(backbone: nn.Module) -> None:
    """Refuse a backbone whose layers have hooks or were replaced, or whose BatchNorm is trained."""
    _require_plain(backbone)
    if any(isinstance(layer, _BatchNorm) and layer.training for layer in backbone.modules()):
        raise ArgumentError(
            'BatchNorm of the backbone is in training mode, where each layer needs the statistics '
            'of the whole image: build the backbone with norm_eval=True'
        )


def _require_plain(backbone: nn.Module) -> None:
    # Of an ImageXCiT, the trunk is streamed.
    if getattr(type(backbone), 'forward', None) not in (XCiT.forward, ImageXCiT.forward):
        raise ArgumentError(f'a {type(backbone).__name__} cannot be streamed: only an XCiT can')
    for i, block in enumerate(backbone.blocks[: backbone.out_indices[-1] + 1]):
        if type(block) is not XCABlock or not is_known_block(block):
            raise _modified(f'blocks.{i}')
    require_known_reach(backbone)


def require_known_reach(backbone: XCiT) -> None:
    """Refuse replaced layers, which may read more rows than the layers of XCiT."""
    stacks = ('patch_embed.proj', 'fpn1', 'fpn2', 'fpn3', 'fpn4')
    parts = {name: flat_layers(backbone.get_submodule(name)) for name in stacks}
    for i, block in enumerate(backbone.blocks[: backbone.out_indices[-1] + 1]):
        for name, kind in {'attn': XCA, 'local_mp': LPI}.items():
            branch = getattr(block, name)
            is_known = type(branch) is kind and 'forward' not in vars(branch)
            parts[f'blocks.{i}.{name}'] = [*branch.children()] if is_known else [branch]
    for name, layers in parts.items():
        for layer in layers:
            convolves = isinstance(layer, nn.Conv2d)
            is_known = is_unmodified(layer, (*PYTORCH_LAYERS, nn.Identity, nn.MaxPool2d))
            if not is_known or (convolves and layer.kernel_size + layer.dilation != (3, 3, 1, 1)):
                raise _modified(name)


def _modified(name: str) -> ArgumentError:
    return ArgumentError(
        f'{name} of the backbone has hooks or replaced layers, whose reach is not known: merge '
        'them into its weights first'
    )
