"""CARAFE: upsampling with a kernel for every pixel (Wang et al. 2019, section 3.2)."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .gradients import once_differentiable


def carafe_forward(
    features: Tensor,
    masks: Tensor,
    rfeatures: Tensor,
    routput: Tensor,
    rmasks: Tensor,
    output: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the upsampled features into ``output``, and ``rfeatures`` for the backward pass."""
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


@once_differentiable
def carafe_backward(
    grad_output: Tensor,
    rfeatures: Tensor,
    masks: Tensor,
    rgrad_output: Tensor,
    rgrad_input_hs: Tensor,
    rgrad_input: Tensor,
    rgrad_masks: Tensor,
    grad_input: Tensor,
    grad_masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the gradients of the features and of the masks."""
    options = kernel_size, group_size, scale_factor
    carafe_naive_backward(grad_output, rfeatures, masks, grad_input, grad_masks, *options)


def carafe_naive_forward(
    features: Tensor,
    masks: Tensor,
    output: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the features (B, C, H, W), weighted by ``masks`` and summed, into ``output``.

    ``masks`` is (B, group_size * kernel_size**2, H * scale_factor, W * scale_factor), and each
    group of channels has its own.
    """
    summed = _by_pixel(output, group_size, scale_factor)
    total = torch.zeros_like(summed, dtype=torch.promote_types(output.dtype, torch.float32))
    masks = _by_pixel(masks, group_size, scale_factor)
    for k, window in enumerate(_windows(features, kernel_size, group_size)):
        total.addcmul_(window[..., None, :, None], masks[:, :, k : k + 1])
    summed.copy_(total)


@once_differentiable
def carafe_naive_backward(
    grad_output: Tensor,
    features: Tensor,
    masks: Tensor,
    grad_input: Tensor,
    grad_masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the gradients of the features and of the masks."""
    grads = _by_pixel(grad_output, group_size, scale_factor)
    masks = _by_pixel(masks, group_size, scale_factor)
    of_masks = _by_pixel(grad_masks, group_size, scale_factor)
    dtype = torch.promote_types(grad_input.dtype, torch.float32)
    border = [kernel_size // 2] * 4
    padded = F.pad(torch.zeros_like(grad_input, dtype=dtype), border)
    windows = zip(
        _windows(features, kernel_size, group_size),
        _views(padded, grad_input.shape[2:], kernel_size, group_size),
        strict=True,
    )
    for k, (window, of_window) in enumerate(windows):
        of_masks[:, :, k] = (grads * window[..., None, :, None]).sum(2)
        of_window += (grads * masks[:, :, k : k + 1]).sum((4, 6), dtype=dtype)
    grad_input.copy_(F.pad(padded, [-width for width in border]))


def _by_pixel(maps: Tensor, groups: int, scale: int) -> Tensor:
    """View (B, C, H*s, W*s) as (B, groups, C/groups, H, s, W, s)."""
    return maps.unflatten(3, (-1, scale)).unflatten(2, (-1, scale)).unflatten(1, (groups, -1))


def _windows(features: Tensor, kernel_size: int, groups: int) -> Iterator[Tensor]:
    """Yield the features (B, groups, C/groups, H, W) under each element of a kernel."""
    padded = F.pad(features, [kernel_size // 2] * 4)
    return _views(padded, features.shape[2:], kernel_size, groups)


def _views(padded: Tensor, size: torch.Size, kernel_size: int, groups: int) -> Iterator[Tensor]:
    H, W = size
    for y in range(kernel_size):
        for x in range(kernel_size):
            yield padded[:, :, y : y + H, x : x + W].unflatten(1, (groups, -1))
