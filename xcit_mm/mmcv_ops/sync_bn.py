"""The steps of mmcv's synchronized BatchNorm (MMSyncBN) between its reductions."""

import torch
from torch import Tensor


def sync_bn_forward_mean(input: Tensor, mean: Tensor) -> None:
    """Write the mean of ``input`` (B, C, N) over images and pixels into ``mean`` (C,)."""
    mean.copy_(input.float().mean((0, 2)))


def sync_bn_forward_var(input: Tensor, mean: Tensor, var: Tensor) -> None:
    """Write the mean squared distance from ``mean`` into ``var``."""
    var.copy_((input - mean[:, None]).square().mean((0, 2)))


def sync_bn_forward_output(
    input: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    norm: Tensor,
    std: Tensor,
    output: Tensor,
    eps: float,
    momentum: float | Tensor,
    group_size: int,
) -> None:
    """Normalize ``input`` with the statistics of all processes, and update the running ones."""
    std.copy_((var + eps).sqrt())
    norm.copy_((input - mean[:, None]) / std[:, None])
    output.copy_(norm if weight is None else norm * weight[:, None] + bias[:, None])
    if running_mean is not None:
        count = input.shape[0] * input.shape[2] * group_size
        unbiased = var * (count / max(1, count - 1))
        running_mean.lerp_(mean, float(momentum))
        running_var.lerp_(unbiased, float(momentum))


def sync_bn_backward_param(
    grad_output: Tensor, norm: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """Write the gradients of the weight and the bias."""
    grad_weight.copy_((grad_output * norm).sum((0, 2)))
    grad_bias.copy_(grad_output.sum((0, 2), dtype=torch.float32))


def sync_bn_backward_data(
    grad_output: Tensor,
    weight: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    norm: Tensor,
    std: Tensor,
    grad_input: Tensor,
) -> None:
    """Write the gradient of the input, from gradients averaged over the processes."""
    count = norm.shape[0] * norm.shape[2]
    through_statistics = (grad_weight[:, None] * norm + grad_bias[:, None]) / count
    grad_input.copy_((weight / std)[:, None] * (grad_output - through_statistics))
