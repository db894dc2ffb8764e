"""Weights and layers in float16, where the values allow it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from ....network.layers import XCA
from ....network.ops.xca import cross_covariance
from .graph import Graph


def to_float16(graph: Graph) -> None:
    """Convert the narrow parts of a graph's model to float16, in place.

    Each part takes and returns float32, so that pixels, boxes and scores are not rounded.
    """
    for path in graph.NARROW:
        part = graph.model
        for name in path.split('.'):
            part = getattr(part, name, None)
        for stage in part if isinstance(part, nn.ModuleList) else [part]:
            if stage is not None:
                _narrow(stage)


def _narrow(module: nn.Module) -> None:
    for parent in list(module.modules()):
        if not isinstance(parent, _BatchNorm):
            parent._apply(lambda t: t.half() if t.is_floating_point() else t, recurse=False)
        for name, child in parent.named_children():
            if type(child) is XCA:
                setattr(parent, name, WideXCA(child))
            elif isinstance(child, _BatchNorm):
                setattr(parent, name, WideNorm(child))
    module.register_forward_pre_hook(lambda _, args: _cast(args, torch.float16))
    module.register_forward_hook(lambda _, args, output: _cast(output, torch.float32))


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)


class WideXCA(nn.Module):
    """The attention of XCiT in float16, with the sums over all tokens in float32.

    Shape:
        (B, N, C) to (B, N, C).
    """

    def __init__(self, attention: XCA) -> None:
        super().__init__()
        self.qkv, self.proj = attention.qkv, attention.proj
        self.temperature = attention.temperature

    def forward(self, x: Tensor) -> Tensor:
        mixed = cross_covariance(self.qkv(x).float(), self.temperature.float())
        return self.proj(mixed.to(x.dtype))


class WideNorm(nn.Module):
    """A BatchNorm in float32 among layers in float16, where its variance could be infinite.

    Shape:
        (B, C, H, W) to (B, C, H, W).
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.float()).to(x.dtype)
