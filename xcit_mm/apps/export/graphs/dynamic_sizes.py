"""Replacements for modules whose sizes a graph would fix to the sizes of the example image."""

import copy
from functools import partial

import torch
from torch import Tensor, nn

from .deformable_attention import DeformableAttention, PixelDecoder, sample_by_gathers


def for_any_size(graph: nn.Module, gather: bool = False) -> nn.Module:
    """Return a copy of a graph without modules that compute sizes outside of the graph.

    Args:
        graph: The graph.
        gather: Whether deformable attention samples by gathers instead of ``grid_sample``.
    """
    replaced = dict(REPLACED)
    if gather:
        replaced[DEFORMABLE] = partial(DeformableAttention, sample=sample_by_gathers)
    graph = copy.deepcopy(graph).requires_grad_(False)
    for module in list(graph.modules()):
        for name, child in module.named_children():
            kind = type(child).__name__
            if kind in replaced:
                setattr(module, name, replaced[kind](child))
            elif kind == 'Upsample' and child.scale_factor is not None:
                # mmseg's computes a size in Python: a constant of the graph.
                options = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **options))
    _separate(graph, set())
    return graph


def _separate(module: nn.Module, seen: set[nn.Module]) -> None:
    """Copy modules that are in several places of the graph, but not their weights.

    While torch.export captures such a module, it replaces the classes of all modules with its own.
    Layers of XCiT that check the class of a module would then choose a form of fixed size.
    """
    for name, child in module._modules.items():
        if child in seen:
            child = copy.copy(child)
            child._modules = dict(child._modules)
            module._modules[name] = child
        if child is not None:
            seen.add(child)
            _separate(child, seen)


class MatrixPool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as a product of matrices: ONNX has it for fixed sizes only."""

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        size = pool.output_size
        self.height, self.width = (size, size) if isinstance(size, int) else size

    def forward(self, x: Tensor) -> Tensor:
        return _averages(self.height, x.shape[2], x) @ x @ _averages(self.width, x.shape[3], x).T


def _averages(number: int, length: int, like: Tensor) -> Tensor:
    """(number, length): row i averages from i * length / number, rounded down, to the next bin."""
    i = torch.arange(number, device=like.device)[:, None]
    start, end = i * length // number, ((i + 1) * length + number - 1) // number
    place = torch.arange(length, device=like.device)
    inside = ((place >= start) & (place < end)).to(like.dtype)
    return inside / (end - start).to(like.dtype)


DEFORMABLE = 'MultiScaleDeformableAttention'
REPLACED = {
    'AdaptiveAvgPool2d': MatrixPool,
    'MSDeformAttnPixelDecoder': PixelDecoder,
    DEFORMABLE: DeformableAttention,
}
