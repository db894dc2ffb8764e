"""Deformable convolutions (Dai et al. 2017; modulated: Zhu et al. 2019), by torchvision."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .gradients import at_least_float32


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    **options: int,
) -> None:
    """Write the convolution of ``input`` (B, C, H, W), sampled at offsets, into ``output``."""
    tensors = at_least_float32(input, weight, offset, *_no_mask_and_bias(input, weight))
    output.copy_(_operators().deform_conv2d(*tensors, *_arguments(options), False))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **options: int,
) -> None:
    """Write the gradients of the input and of the offsets.

    torchvision also computes the gradient of the weights, which mmcv asks for in its next call. The
    buffer ``columns`` of both calls holds it until then.
    """
    of_input, of_weight, of_offset = _backward(input, offset, grad_output, weight, options)
    grad_input.copy_(of_input)
    grad_offset.copy_(of_offset)
    columns.resize_(weight.shape).copy_(of_weight)


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    *,
    scale: float,
    **options: int,
) -> None:
    """Write the gradient of the weights, times ``scale``."""
    if columns.shape != grad_weight.shape:  # input and offset need no gradient
        weight = torch.zeros_like(grad_weight)  # the gradient does not depend on it
        _, columns, _ = _backward(input, offset, grad_output, weight, options)
    grad_weight.copy_(columns * scale)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    **options: int,
) -> None:
    """Write the convolution with a factor for each sample, ``mask``, into ``output``."""
    bias = _bias(bias, weight, options)
    offset, mask = (_first(samples, output.shape[2:]) for samples in (offset, mask))
    tensors = at_least_float32(input, weight, offset, mask, bias)
    output.copy_(_operators().deform_conv2d(*tensors, *_modulated(options), True))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    **options: int,
) -> None:
    """Write the gradients of the input, the weights, the bias, the offsets and the mask."""
    with_bias = options['with_bias']
    bias = _bias(bias, weight, options)
    offset, mask = (_first(samples, grad_output.shape[2:]) for samples in (offset, mask))
    tensors = at_least_float32(grad_output, input, weight, offset, mask, bias)
    computed = _operators()._deform_conv2d_backward(*tensors, *_modulated(options), True)
    of_input, of_weight, of_offset, of_mask, of_bias = computed
    of_offset = _inside(of_offset, offset, weight, _modulated(options))
    grad_input.copy_(of_input)
    grad_weight.copy_(of_weight)
    for grad, value in ((grad_offset, of_offset), (grad_mask, of_mask)):
        unread = grad[0].numel() - value[0].numel()
        grad.copy_(F.pad(value.flatten(1), (0, unread)).view(grad.shape))
    if with_bias:
        grad_bias.copy_(of_bias)


def _first(samples: Tensor, size: torch.Size) -> Tensor:
    """Read the offsets or factors of an output of this size, as compiled mmcv does.

    It reads the numbers of an image as one row. DyHead passes too many, because it convolves a
    map with the offsets of the finer one.
    """
    if samples[0, 0].numel() <= size.numel():
        return samples
    channels = samples.shape[1]
    return samples.flatten(1)[:, : channels * size.numel()].unflatten(1, (channels, *size))


def _backward(
    input: Tensor, offset: Tensor, grad_output: Tensor, weight: Tensor, options: dict[str, int]
) -> tuple[Tensor, Tensor, Tensor]:
    mask, bias = _no_mask_and_bias(input, weight)
    tensors = at_least_float32(grad_output, input, weight, offset, mask, bias)
    arguments = _arguments(options)
    computed = _operators()._deform_conv2d_backward(*tensors, *arguments, False)
    of_input, of_weight, of_offset = computed[:3]
    return of_input, of_weight, _inside(of_offset, offset, weight, arguments)


def _inside(gradient: Tensor, offset: Tensor, weight: Tensor, arguments: list[int]) -> Tensor:
    """Drop the gradient of offsets of samples one pixel outside the map, as compiled mmcv does.

    A padded convolution with zero offsets samples there. The value has a kink at these points, and
    torchvision takes the slope toward the map.
    """
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, *_ = arguments
    kernel_h, kernel_w = weight.shape[2:]
    i, j, y, x = (
        torch.arange(n, device=offset.device) for n in (kernel_h, kernel_w, *offset.shape[2:])
    )
    rows = i[:, None, None, None] * dilation_h + y[:, None] * stride_h - pad_h
    columns = j[:, None, None] * dilation_w + x * stride_w - pad_w
    starts = torch.stack(torch.broadcast_tensors(rows, columns), dim=2)  # (i, j, 2, y, x)
    position = offset.unflatten(1, (-1, kernel_h, kernel_w, 2)) + starts
    return gradient.where(position.flatten(1, 4) != -1, 0)


def _operators():
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    return torch.ops.torchvision


def _no_mask_and_bias(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return input.new_zeros(len(input), 1), input.new_zeros(len(weight))


def _bias(bias: Tensor, weight: Tensor, options: dict[str, int]) -> Tensor:
    return bias if options['with_bias'] else weight.new_zeros(len(weight))


def _arguments(options: dict[str, int]) -> list[int]:
    names = 'dH dW padH padW dilationH dilationW group deformable_group'
    return [options[name] for name in names.split()]


def _modulated(options: dict[str, int]) -> list[int]:
    names = 'stride_h stride_w pad_h pad_w dilation_h dilation_w group deformable_group'
    return [options[name] for name in names.split()]
