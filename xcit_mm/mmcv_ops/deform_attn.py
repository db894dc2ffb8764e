"""Multi-scale deformable attention (Deformable DETR, Zhu et al. 2021, section 4.1).

mmcv calls the compiled operator on a GPU. On a CPU it uses a version in PyTorch, whose graph keeps
every sampled value. Here, the backward pass samples again, one level of the pyramid at a time.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .gradients import at_least_float32

BILINEAR, ZEROS, ALIGN_CORNERS = 0, 0, False  # the arguments of grid_sample, for its gradient


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Return the attended values (B, Q, h*d).

    Shape:
        - value: (B, S, h, d), the tokens of all levels.
        - spatial_shapes: (L, 2), height and width of each level.
        - sampling_locations: (B, Q, h, L, P, 2), x and y from 0 to 1.
        - attention_weights: (B, Q, h, L, P).
    """
    B, Q, h = attention_weights.shape[:3]
    output = 0
    for tokens, grid, weights in _levels(
        value, spatial_shapes, sampling_locations, attention_weights
    ):
        sampled = F.grid_sample(tokens, grid, align_corners=ALIGN_CORNERS)  # (B*h, d, Q, P)
        with torch.autocast(value.device.type, enabled=False):  # for the sums, too
            output += torch.einsum('ndqp,nqp->ndq', sampled, weights)
    return output.view(B, h, -1, Q).permute(0, 3, 1, 2).flatten(2).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Write the gradients of :func:`ms_deform_attn_forward` into the last three tensors."""
    B, Q, h = attention_weights.shape[:3]
    (grad_output,) = at_least_float32(grad_output)
    grad_output = grad_output.view(B, Q, h, -1).permute(0, 2, 3, 1).flatten(0, 1)  # (B*h, d, Q)
    start = 0
    for level, (tokens, grid, weights) in enumerate(
        _levels(value, spatial_shapes, sampling_locations, attention_weights)
    ):
        sampled = F.grid_sample(tokens, grid, align_corners=ALIGN_CORNERS)
        with torch.autocast(value.device.type, enabled=False):
            grad_weights = torch.einsum('ndqp,ndq->nqp', sampled, grad_output)
        torch.mul(grad_output[..., None], weights[:, None], out=sampled)  # the samples' gradient
        grad_tokens, grad_grid = torch.ops.aten.grid_sampler_2d_backward(
            sampled, tokens, grid, BILINEAR, ZEROS, ALIGN_CORNERS, (True, True)
        )
        end = start + tokens[0, 0].numel()
        grad_value[:, start:end] = grad_tokens.view(B, h, -1, end - start).permute(0, 3, 1, 2)
        grad_sampling_loc[:, :, :, level] = 2 * grad_grid.unflatten(0, (B, h)).transpose(1, 2)
        grad_attn_weight[:, :, :, level] = grad_weights.unflatten(0, (B, h)).transpose(1, 2)
        start = end


def _levels(
    value: Tensor, spatial_shapes: Tensor, sampling_locations: Tensor, attention_weights: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield tokens (B*h, d, H, W), grid (B*h, Q, P, 2) and weights (B*h, Q, P) of each level."""
    start = 0
    for level, (H, W) in enumerate(spatial_shapes.tolist()):
        tokens = value[:, start : start + H * W].permute(0, 2, 3, 1).flatten(0, 1)
        locations = sampling_locations[:, :, :, level].transpose(1, 2).flatten(0, 1)
        weights = attention_weights[:, :, :, level].transpose(1, 2).flatten(0, 1)
        tokens, locations, weights = at_least_float32(tokens, locations, weights)
        yield tokens.unflatten(2, (H, W)), 2 * locations - 1, weights
        start += H * W
