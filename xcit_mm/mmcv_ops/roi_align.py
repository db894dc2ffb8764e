"""RoIAlign (Mask R-CNN, He et al. 2017): average by torchvision, maximum in PyTorch."""

import torch
from torch import Tensor

from .gradients import at_least_float32, gradients
from .sampling import bilinear, regions

MAX = 0  # pool_mode; 1 is the average


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
    """Pool regions (n, 5) of a map (B, C, H, W) into ``output`` (n, C, height, width).

    The position of a maximum goes into ``argmax_y`` and ``argmax_x``, in pixels of the map.
    """
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    input, rois = at_least_float32(input, rois)
    size = aligned_height, aligned_width
    if pool_mode != MAX:
        options = spatial_scale, *size, sampling_ratio, aligned
        output.copy_(torch.ops.torchvision.roi_align(input, rois, *options))
        return
    output.zero_()
    argmax_y.fill_(-1)
    argmax_x.fill_(-1)
    for region in regions(rois, input.shape[1], size, spatial_scale, sampling_ratio, aligned):
        values, point = region.sample(input).max(3)
        point = point.permute(0, 3, 1, 2)  # (n, C, height, width), in the grid of a bin
        columns = region.x.shape[2]
        n, C = point.shape[:2]
        y = region.y[:, None, :, None, :].expand(n, C, *size, -1)
        x = region.x[:, None, None, :, :].expand(n, C, *size, -1)
        output[region.index] = values.permute(0, 3, 1, 2).to(output.dtype)
        argmax_y[region.index] = y.gather(4, point[..., None] // columns)[..., 0].to(argmax_y.dtype)
        argmax_x[region.index] = x.gather(4, point[..., None] % columns)[..., 0].to(argmax_x.dtype)


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
    if pool_mode == MAX:
        B, C, H, W = grad_input.shape
        # Each channel has points of its own: sample the channels as if they were images.
        image = rois[:, :1].long() * C + torch.arange(C, device=rois.device)
        y, x, grads = (t.flatten(2).flatten(0, 1) for t in (argmax_y, argmax_x, grad_output))
        grads = torch.where(y == -1, 0, grads)

        def sample(maps: Tensor) -> Tensor:
            return bilinear(maps.view(B * C, 1, H, W), image.flatten(), *at_least_float32(y, x))

        grad_input.copy_(*gradients(sample, [grad_input], grads[..., None]))
        return
    sizes = aligned_height, aligned_width, *grad_input.shape
    options = spatial_scale, *sizes, sampling_ratio, aligned
    operator = torch.ops.torchvision._roi_align_backward
    grad_input.copy_(operator(*at_least_float32(grad_output, rois), *options))
