"""RoIAlign of Mask R-CNN, average mode."""

import torch
from torch import Tensor

from ..errors import MissingOperatorError


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average-pool regions (n, 5) of a map (B, C, H, W) into ``output``."""
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    if pool_mode != 1:
        raise MissingOperatorError(
            "roi_align: pool_mode='max' exists in compiled mmcv only; use pool_mode='avg'"
        )
    options = spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
    output.copy_(torch.ops.torchvision.roi_align(*_at_least_float32(input, rois), *options))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of :func:`roi_align_forward` to its input into ``grad_input``."""
    sizes = aligned_height, aligned_width, *grad_input.shape
    options = spatial_scale, *sizes, sampling_ratio, aligned
    operator = torch.ops.torchvision._roi_align_backward
    grad_input.copy_(operator(*_at_least_float32(grad_output, rois), *options))


def _at_least_float32(*tensors: Tensor) -> list[Tensor]:
    # torchvision's RoIAlign does not support bfloat16, nor float16 on the CPU.
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
