"""Replace modules whose sizes a graph would fix at those of the example."""

import copy
from collections.abc import Sequence

import torch
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def for_any_size(graph: nn.Module) -> nn.Module:
    """Return a copy of a graph without modules that compute sizes outside of the graph."""
    graph = copy.deepcopy(graph).requires_grad_(False)
    for module in list(graph.modules()):
        for name, child in module.named_children():
            kind = type(child).__name__
            if kind in REPLACED:
                setattr(module, name, REPLACED[kind](child))
            elif kind == 'Upsample' and child.scale_factor is not None:
                # mmseg's computes a size in Python, which would be a constant of the graph.
                options = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **options))
    _separate(graph, set())
    return graph


def _separate(module: nn.Module, seen: set[nn.Module]) -> None:
    """Copy modules that are at several places, without their weights.

    While it records such a module, torch.export replaces the classes of all modules by its own.
    Layers of XCiT that look for the class of a module would then choose a form of fixed size.
    """
    for name, child in module._modules.items():
        if child in seen:
            child = copy.copy(child)
            child._modules = dict(child._modules)
            module._modules[name] = child
        if child is not None:
            seen.add(child)
            _separate(child, seen)


class WholeSteps(TorchFunctionMode):
    """``torch.linspace`` for places that are one apart, in a ``with`` block.

    With a size that is not fixed, its form in ONNX rounds the step, and may lack the last place.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.linspace:
            start, _, number = args
            return torch.arange(number, **kwargs) + start
        return func(*args, **kwargs)


class MatrixPool(nn.Module):
    """``nn.AdaptiveAvgPool2d``, which ONNX has for fixed sizes only, as a product of matrices."""

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


class DeformableAttention(nn.Module):
    """mmcv's ``MultiScaleDeformableAttention`` for sizes of maps that are numbers, not a tensor.

    See Deformable DETR (arXiv 2010.04159), section 4.1.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.batch_first = attention.batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        identity: Tensor | None = None,
        query_pos: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        reference_points: Tensor | None = None,
        spatial_shapes: Sequence[tuple[int, int]] = (),
        **kwargs,
    ) -> Tensor:
        layer = self.attention
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        B, Q, _ = query.shape
        heads, levels, points = layer.num_heads, layer.num_levels, layer.num_points
        value = layer.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask[..., None], 0.0)
        value = value.view(B, value.shape[1], heads, -1)
        offsets = layer.sampling_offsets(query).view(B, Q, heads, levels, points, 2)
        weights = layer.attention_weights(query).view(B, Q, heads, levels * points)
        weights = weights.softmax(-1).view(B, Q, heads, levels, points)
        places = reference_points[:, :, None, :, None]
        if reference_points.shape[-1] == 2:
            sides = torch.stack(
                [torch.cat([value.new_full((1,), n) for n in (W, H)]) for H, W in spatial_shapes]
            )
            locations = places + offsets / sides[:, None]
        else:
            locations = places[..., :2] + offsets / points * places[..., 2:] * 0.5
        output = multi_scale_deformable_attn_pytorch(value, spatial_shapes, locations, weights)
        return layer.output_proj(output) + identity


REPLACED = {
    'AdaptiveAvgPool2d': MatrixPool,
    'MultiScaleDeformableAttention': DeformableAttention,
}
