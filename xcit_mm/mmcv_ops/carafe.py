"""CARAFE: upsampling with a kernel for every pixel (Wang et al. 2019, section 3.2)."""

from itertools import product

from torch import Tensor
from torch.nn import functional as F

from .gradients import at_least_float32, gradients


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
    """Write the upsampled features into ``output``."""
    inputs = at_least_float32(features, masks)
    output.copy_(_upsampled(*inputs, kernel_size, group_size, scale_factor))


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

    def upsampled(features: Tensor, masks: Tensor) -> Tensor:
        return _upsampled(features, masks, kernel_size, group_size, scale_factor)

    of_features, of_masks = gradients(upsampled, (features, masks), grad_output)
    grad_input.copy_(of_features)
    grad_masks.copy_(of_masks)


def _upsampled(
    features: Tensor, masks: Tensor, kernel_size: int, groups: int, scale: int
) -> Tensor:
    """Weight the features (B, C, H, W) under a kernel by the masks of each pixel, and sum them.

    ``masks`` is (B, groups * kernel_size**2, H * scale, W * scale), and each group of channels has
    its own.
    """
    B, C, H, W = features.shape
    padded = F.pad(features, [kernel_size // 2] * 4).unflatten(1, (groups, -1))
    masks = masks.reshape(B, groups, -1, H, scale, W, scale)
    total = 0
    for k, (y, x) in enumerate(product(range(kernel_size), repeat=2)):
        window = padded[..., y : y + H, x : x + W]  # (B, groups, C / groups, H, W)
        total = total + window[..., None, :, None] * masks[:, :, k : k + 1]
    return total.reshape(B, C, H * scale, W * scale)
