"""Multi-scale deformable attention over maps whose sizes are numbers.

mmcv and mmdet pass the sizes as a tensor, whose values a graph does not know.
"""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class DeformableAttention(nn.Module):
    """mmcv's ``MultiScaleDeformableAttention`` for sizes of maps that are numbers, not a tensor.

    See Deformable DETR (arXiv 2010.04159), section 4.1.

    Args:
        attention: mmcv's layer.
        sample: What computes the weighted sums of sampled values:
            ``multi_scale_deformable_attn_pytorch`` of mmcv, or :func:`sample_by_gathers`.
    """

    def __init__(
        self,
        attention: nn.Module,
        sample: Callable[..., Tensor] = multi_scale_deformable_attn_pytorch,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.sample = sample
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
            sides = _sides(spatial_shapes, value)
            locations = places + offsets / sides[:, None]
        else:
            locations = places[..., :2] + offsets / points * places[..., 2:] * 0.5
        output = self.sample(value, spatial_shapes, locations, weights)
        return layer.output_proj(output) + identity


def sample_by_gathers(
    value: Tensor, sizes: Sequence[tuple[int, int]], locations: Tensor, weights: Tensor
) -> Tensor:
    """Compute the same as mmcv's ``multi_scale_deformable_attn_pytorch`` without ``grid_sample``.

    Each of the four neighbors of a place is a row of a table. Its bilinear weight is 0 outside of
    the map.

    Shape:
        - value: (B, tokens of L maps, heads, d)
        - locations: (B, Q, heads, L, points, 2), x and y from 0 to 1
        - weights: (B, Q, heads, L, points)
        - output: (B, Q, heads * d)
    """
    B, N, heads, d = value.shape
    Q = locations.shape[1]
    table = value.transpose(1, 2).reshape(-1, d)
    sides = _sides(sizes, value)[:, None]  # (L, 1, 2)
    first = _first_rows(sizes, B * heads, N, value.device).view(B, 1, heads, len(sizes), 1)
    places = locations * sides - 0.5
    lower = places.floor()
    shares = 1 - (places - lower), places - lower
    output = 0.0
    for right, below in product((0, 1), repeat=2):
        place = lower + lower.new_tensor([right, below])
        inside = ((place >= 0) & (place < sides)).all(-1)
        share = weights * shares[right][..., 0] * shares[below][..., 1] * inside
        x, y = place.clamp(min=0).minimum(sides - 1).long().unbind(-1)
        rows = first + y * sides[..., 0].long() + x
        values = table.index_select(0, rows.flatten()).view(B, Q, heads, -1, d)
        output = output + (share.flatten(3)[..., None] * values).sum(3)
    return output.flatten(2)


def _first_rows(
    sizes: Sequence[tuple[int, int]], tables: int, tokens: int, device: torch.device
) -> Tensor:
    """Return the first row of each map in each of several tables of tokens, (tables, L)."""
    starts, start = [], 0
    for H, W in sizes:
        starts.append(torch.full((1,), start, device=device))
        start = start + H * W
    return torch.arange(tables, device=device)[:, None] * tokens + torch.cat(starts)


def _sides(sizes: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """Return width and height of each map (L, 2), from sizes (H, W)."""
    return torch.stack([torch.cat([like.new_full((1,), n) for n in (W, H)]) for H, W in sizes])


class PixelDecoder(nn.Module):
    """The pixel decoder of Mask2Former for sizes of maps that are numbers, not a tensor.

    See arXiv 2112.01527, section 3.2. The layers belong to mmdet's ``MSDeformAttnPixelDecoder``.

    Shape:
        Maps (B, C_i, H_i, W_i), from large to small, to the features of the masks (B, C, H_0, W_0)
        and maps (B, C, H_i, W_i), from small to large.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        layers = self.decoder
        first = layers.num_input_levels - layers.num_encoder_levels
        small = list(maps[first:])[::-1]
        sizes = [tuple(m.shape[2:]) for m in small]
        masks = [torch.zeros_like(m[:, 0], dtype=torch.bool) for m in small]
        positions = [
            layers.postional_encoding(mask).flatten(2).mT + level  # spelled so in mmdet
            for mask, level in zip(masks, layers.level_encoding.weight, strict=True)
        ]
        tokens = [conv(m).flatten(2).mT for conv, m in zip(layers.input_convs, small, strict=True)]
        points = [
            layers.point_generator.single_level_grid_priors(size, level, device=maps[0].device)
            / (sides * layers.strides[level])
            for level, size, sides in zip(
                reversed(range(first, layers.num_input_levels)),
                sizes,
                _sides(sizes, maps[0]),
                strict=True,
            )
        ]
        points = torch.cat(points)[:, None].expand(-1, len(sizes), -1)
        memory = layers.encoder(
            query=torch.cat(tokens, 1),
            query_pos=torch.cat(positions, 1),
            key_padding_mask=torch.cat([mask.flatten(1) for mask in masks], 1),
            spatial_shapes=sizes,
            level_start_index=None,  # follows from the sizes
            valid_ratios=None,  # there is no padding
            reference_points=points.expand(maps[0].shape[0], -1, -1, -1),
        )
        parts = memory.mT.split([H * W for H, W in sizes], dim=-1)
        outputs = [part.unflatten(2, size) for part, size in zip(parts, sizes, strict=True)]
        for i in reversed(range(first)):
            lateral = layers.lateral_convs[i](maps[i])
            above = F.interpolate(outputs[-1], lateral.shape[2:], mode='bilinear')
            outputs.append(layers.output_convs[i](lateral + above))
        return layers.mask_feature(outputs[-1]), outputs[: layers.num_outs]


class WholeSteps(TorchFunctionMode):
    """Replace ``torch.linspace`` with steps of 1 by ``torch.arange`` in a ``with`` block.

    For a dynamic size, its ONNX form rounds the step, and may lose the last place.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.linspace:
            start, _, number = args
            return torch.arange(number, **kwargs) + start
        return func(*args, **kwargs)
