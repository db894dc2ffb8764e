"""Deformable RoI pooling (Deformable Convolutional Networks, Dai et al. 2017, section 2.2)."""

from torch import Tensor

from .gradients import at_least_float32, gradients
from .sampling import Region, regions


def deform_roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    output: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Average the bins of regions, moved by ``offset`` (n, 2, height, width) if it is not empty.

    The offset is a fraction of the region's width and height, times ``gamma``.
    """
    output.zero_()
    input, rois, offset = at_least_float32(input, rois, offset)
    size = pooled_height, pooled_width
    for region in regions(rois, input.shape[1], size, spatial_scale, sampling_ratio):
        moves = offset[region.index] if offset.numel() else None
        output[region.index] = _moved_average(input, moves, region, gamma).to(output.dtype)


def deform_roi_pool_backward(
    grad_output: Tensor,
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Add the gradient of the input to ``grad_input``, and write the gradient of the offset."""
    size = pooled_height, pooled_width
    (rois,) = at_least_float32(rois)
    for region in regions(rois, input.shape[1], size, spatial_scale, sampling_ratio):
        has_offset = offset.numel() > 0
        inputs = [input, offset[region.index]] if has_offset else [input]

        def average(maps: Tensor, moves: Tensor | None = None, region=region) -> Tensor:
            return _moved_average(maps, moves, region, gamma)

        of_input, *of_moves = gradients(average, inputs, grad_output[region.index])
        grad_input.add_(of_input.to(grad_input.dtype))
        if has_offset:
            grad_offset[region.index] = of_moves[0].to(grad_offset.dtype)


def _moved_average(input: Tensor, moves: Tensor | None, region: Region, gamma: float) -> Tensor:
    if moves is None:
        samples = region.sample(input)
    else:
        width, height = gamma * region.width[:, None, None], gamma * region.height[:, None, None]
        samples = region.sample(input, dy=height * moves[:, 1], dx=width * moves[:, 0])
    return samples.mean(3).permute(0, 3, 1, 2)
