"""Models of mmdet and mmseg in 16 bits, with boxes and scores in float32."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ...network.fast.unmodified import CONVOLUTIONS, is_unmodified
from .fpn import UpsamplingLateral

# The heads of a cascade and the branches of DINO have numbers. mmseg does not call the head itself
# but its last layer, and DINO's encoder calls the branches.
LAST_LAYER = re.compile(r'(_head|\.conv_seg|\.(cls|reg)_branches)(\.\d+)?$')


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Store the weights of products in 16 bits, and widen what the heads predict to float32.

    Tokens stay in float32 where branches are added to them, which halves the errors of the maps.
    Anchors, decoded boxes and probabilities have the dtype of what a head predicts, and 16 bits
    are too few for the coordinates of a large image.
    """
    for module in model.modules():
        if is_unmodified(module, (nn.Linear, *CONVOLUTIONS, UpsamplingLateral)):
            module.to(dtype)
    widen_heads(model)


def widen_heads(model: nn.Module) -> None:
    """Convert what the heads of a model return to float32."""
    for layer in _last_layers(model):
        layer.register_forward_hook(_widen)


@contextmanager
def widest_outputs(model: nn.Module) -> Iterator[None]:
    """Convert what neck and heads return to float32 in a ``with`` block, also under autocast.

    mmdet rounds the coordinates of regions to the dtype of the maps that the neck returns.
    """
    necks = [module for name, module in model.named_modules() if name.split('.')[-1] == 'neck']
    with ExitStack() as stack:
        for module in (*necks, *_last_layers(model)):
            stack.callback(module.register_forward_hook(_widen).remove)
        yield


def _last_layers(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if LAST_LAYER.search(name)]


def _widen(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    narrow = torch.bfloat16, torch.float16
    return tree_map_only(Tensor, lambda x: x.float() if x.dtype in narrow else x, outputs)
