"""Stacks of convolutions on a GPU: cuDNN's convolutions, with BatchNorm and GELU in one kernel.

The backward pass keeps the outputs of the convolutions, and computes what lies between them again.

A channels-last map (B, C, H, W) is read as rows of ``WIDTH`` values, the smallest multiple of C and
128. A row holds the channels of WIDTH / C pixels, so that programs for 128 columns read whole cache
lines, and no lane is idle if C is 24, 48 or 96. The last row may be incomplete.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..tracing import computed_dtype, without_autocast
from .batch_norm import (
    affine_map,
    differentiable_norm,
    process_group,
    running_statistics,
    statistics,
    sum_over_processes,
    uses_batch_statistics,
)
from .differentiable import asks_for_second, gradients
from .gelu import gelu, gelu_and_slope
from .launch import kernel, launch

BLOCK_R, BLOCK_W = 16, 128  # rows and columns of a tile
# Programs that add up values: four for each multiprocessor of an H100, which run at once. So few
# keep the memory busy only if they load tiles ahead, in stages.
PROGRAMS = 528
STAGES = tl.constexpr(3)


def conv_stack(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply convolutions, with BatchNorm and GELU between them, and maybe BatchNorm at the end.

    Under autocast, the layers compute in its dtype. A stack that ends in BatchNorm returns maps
    in the dtype of ``x``.

    Args:
        layers: Unmodified layers: a convolution, then BatchNorm, GELU and a convolution any number
            of times, and then BatchNorm or nothing.
        x: Maps in any memory format.

    Shape:
        (B, C, H, W) to (B, C', H', W') in channels-last memory format.
    """
    dtype, out_dtype = computed_dtype(x), x.dtype
    compute = NormGeluConv.apply if torch.is_grad_enabled() else _infer

    def apply(y: Tensor, *args: Any) -> Tensor:
        # Here and not in the function, which saves its input for second derivatives.
        return compute(y.contiguous(memory_format=torch.channels_last), *args)

    with without_autocast(x):
        x = x.to(dtype, memory_format=torch.channels_last)
        x = torch.convolution(x, *_weights(layers[0], dtype), *_geometry(layers[0]))
        for bn, _, conv in zip(layers[1::3], layers[2::3], layers[3::3], strict=False):
            x = apply(
                x, bn.weight, bn.bias, *_weights(conv, dtype), bn, True, _geometry(conv), dtype
            )
        if len(layers) % 3 == 2:
            bn = layers[-1]
            x = apply(x, bn.weight, bn.bias, None, None, bn, False, None, out_dtype)
    return x


def _weights(conv: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    weight = conv.weight.to(dtype, memory_format=torch.channels_last)
    return weight, None if conv.bias is None else conv.bias.to(dtype)


def _geometry(conv: nn.Module) -> tuple[Any, ...]:
    """Return the arguments of ``torch.convolution`` after weight and bias."""
    is_transposed = isinstance(conv, nn.ConvTranspose2d)
    sizes = conv.stride, conv.padding, conv.dilation
    return *sizes, is_transposed, conv.output_padding, conv.groups


def _normalization(y: Tensor, weight: Tensor, bias: Tensor, bn: _BatchNorm) -> Tensor:
    if not uses_batch_statistics(bn):
        return running_statistics(bn, weight, bias)
    partials = _sums(partials_kernel, (y,), 3)
    return statistics(partials, bn, weight, bias, process_group(bn))


def _infer(
    y: Tensor,
    bn_weight: Tensor,
    bn_bias: Tensor,
    conv_weight: Tensor | None,
    conv_bias: Tensor | None,
    bn: _BatchNorm,
    activates: bool,
    geometry: tuple[Any, ...] | None,
    dtype: torch.dtype,
) -> Tensor:
    """Do what NormGeluConv does without gradients, and overwrite y, the output of a convolution.

    BatchNorm is not folded into that convolution: GELU needs a kernel anyway, in which factor
    and shift cost nothing, and the weights keep their range.
    """
    x = y if y.dtype == dtype else torch.empty_like(y, dtype=dtype)
    normalization, running = None, (bn.running_mean, bn.running_var, bn_weight, bn_bias, bn.eps)
    if uses_batch_statistics(bn):
        normalization, running = _normalization(y, bn_weight, bn_bias, bn), (None,) * 5
    _normalize(y, normalization, activates, x, *running)
    return x if conv_weight is None else torch.convolution(x, conv_weight, conv_bias, *geometry)


class NormGeluConv(Function):
    """BatchNorm, GELU if ``activates``, and a convolution if there is one; y is channels-last."""

    @staticmethod
    def forward(
        ctx,
        y: Tensor,
        bn_weight: Tensor,
        bn_bias: Tensor,
        conv_weight: Tensor | None,
        conv_bias: Tensor | None,
        bn: _BatchNorm,
        activates: bool,
        geometry: tuple[Any, ...] | None,
        dtype: torch.dtype,
    ) -> Tensor:
        normalization = _normalization(y, bn_weight, bn_bias, bn)
        ctx.save_for_backward(y, normalization, conv_weight, bn_weight, bn_bias, conv_bias)
        ctx.options = process_group(bn), activates, geometry
        ctx.eps = bn.eps if uses_batch_statistics(bn) else None
        x = torch.empty_like(y, dtype=dtype)
        _normalize(y, normalization, activates, x)
        return x if conv_weight is None else torch.convolution(x, conv_weight, conv_bias, *geometry)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, normalization, conv_weight, bn_weight, bn_bias, conv_bias = ctx.saved_tensors
        group, activates, geometry = ctx.options
        if asks_for_second(grad):
            normalize_again = differentiable_norm(normalization, ctx.eps, group)
            function = partial(_norm_gelu_conv, normalize_again, activates, geometry)
            inputs = y, bn_weight, bn_bias, conv_weight, conv_bias
            return *gradients(function, inputs, grad), *[None] * 4
        of_conv = None, None
        dy = torch.empty_like(y)
        if conv_weight is not None:
            x = dy  # until the convolution's gradients are known
            _normalize(y, normalization, activates, x)
            needs = True, *ctx.needs_input_grad[3:5]
            sizes = grad.shape[1:2]
            grad, *of_conv = torch.ops.aten.convolution_backward(
                grad, x, conv_weight, sizes, *geometry, needs
            )
        grad = grad.contiguous(memory_format=torch.channels_last)
        tensors = grad, y, normalization
        sums = _sums(backward_sums_kernel, tensors, 2, ACTIVATES=activates).sum(0)
        dbias, dweight = sums.to(bn_weight.dtype)
        _gradient(*tensors, sum_over_processes(sums, group), activates, dy)
        return dy, dweight, dbias, *of_conv, None, None, None, None


def _norm_gelu_conv(
    normalize_again: Callable[[Tensor, Tensor, Tensor], Tensor],
    activates: bool,
    geometry: tuple[Any, ...] | None,
    y: Tensor,
    bn_weight: Tensor,
    bn_bias: Tensor,
    conv_weight: Tensor | None,
    conv_bias: Tensor | None,
) -> Tensor:
    """Do what NormGeluConv does, with PyTorch operators."""
    x = normalize_again(y, bn_weight, bn_bias)
    x = F.gelu(x) if activates else x
    return x if conv_weight is None else torch.convolution(x, conv_weight, conv_bias, *geometry)


def _tiling(y: Tensor) -> tuple[int, int, dict[str, int]]:
    """Return the number of pixels, the number of tiles from top to bottom, and kernel constants."""
    C = y.shape[1]
    width = math.lcm(C, BLOCK_W)
    T = y.numel() // C
    tiles = triton.cdiv(T * C, width * BLOCK_R)
    return T, tiles, dict(C=C, WIDTH=width, BLOCK_R=BLOCK_R, BLOCK_W=BLOCK_W, num_warps=4)


def _normalize(
    y: Tensor,
    normalization: Tensor | None,
    activates: bool,
    out: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    bn_weight: Tensor | None = None,
    bn_bias: Tensor | None = None,
    eps: float | None = None,
) -> None:
    """Write the normalized values to ``out``, after GELU if ``activates``.

    Without a normalization, the kernel computes it from running statistics.
    """
    T, tiles, constants = _tiling(y)
    grid = (tiles * constants['WIDTH'] // BLOCK_W,)
    running = running_mean, running_var, bn_weight, bn_bias, eps
    args = y, normalization, *running, out, T
    launch(norm_gelu_kernel, grid, *args, ACTIVATES=activates, **constants)


def _sums(
    kernel: triton.JITFunction, tensors: Sequence[Tensor], quantities: int, **options: Any
) -> Tensor:
    """Return what programs have added up over disjoint sets of pixels, (P, quantities, C)."""
    y = tensors[0]
    T, tiles, constants = _tiling(y)
    columns, pixels = constants['WIDTH'] // BLOCK_W, constants['WIDTH'] // constants['C']
    share = triton.cdiv(tiles * columns, PROGRAMS)  # tiles of a program
    programs = triton.cdiv(tiles, max(1, share))
    sums = y.new_empty((programs * pixels, quantities, y.shape[1]), dtype=torch.float32)
    grid = (programs * columns,)
    launch(kernel, grid, *tensors, sums, T, share * BLOCK_R, **options, **constants)
    return sums


def _gradient(
    grad: Tensor, y: Tensor, normalization: Tensor, sums: Tensor, activates: bool, dy: Tensor
) -> None:
    T, tiles, constants = _tiling(y)
    grid = (tiles * constants['WIDTH'] // BLOCK_W,)
    tensors = grad, y, normalization, sums, dy
    launch(norm_gelu_backward_kernel, grid, *tensors, T, ACTIVATES=activates, **constants)


@triton.jit
def _tile(row, column, T, C: tl.constexpr, WIDTH: tl.constexpr):
    """Return the offsets of values in a map, and which of them are inside the map."""
    pixel = row[:, None] * (WIDTH // C) + (column // C)[None]
    return row[:, None].to(tl.int64) * WIDTH + column[None], pixel < T


@kernel
def partials_kernel(
    y_ptr,
    partials_ptr,
    T,
    rows,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Compute the number, mean and squared deviations of the values in each column of some rows."""
    PIXELS: tl.constexpr = WIDTH // C
    COLUMNS: tl.constexpr = WIDTH // BLOCK_W
    program = tl.program_id(0) // COLUMNS
    column = tl.program_id(0) % COLUMNS * BLOCK_W + tl.arange(0, BLOCK_W)
    pixel = column // C
    first = program * rows
    r = first + tl.arange(0, BLOCK_R)
    count = tl.minimum(tl.maximum((T - pixel + PIXELS - 1) // PIXELS - first, 0), rows)
    # Squares are added up around the mean of the first tile, and so lose few digits.
    at, inside = _tile(r, column, T, C, WIDTH)
    y = tl.load(y_ptr + at, inside, other=0.0).to(tl.float32)
    center = tl.sum(y, 0) / tl.maximum(tl.minimum(count, BLOCK_R), 1).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for start in tl.range(0, rows, BLOCK_R, num_stages=STAGES):
        at, inside = _tile(r + start, column, T, C, WIDTH)
        y = tl.load(y_ptr + at, inside, other=0.0).to(tl.float32)
        difference = tl.where(inside, y - center[None], 0.0)
        total += difference
        squares += difference * difference
    shift = tl.sum(total, 0) / tl.maximum(count, 1).to(tl.float32)
    deviations = tl.sum(squares, 0) - shift * shift * count.to(tl.float32)
    out_ptr = partials_ptr + (program * PIXELS + pixel) * (3 * C) + column % C
    tl.store(out_ptr, count.to(tl.float32))
    tl.store(out_ptr + C, center + shift)
    tl.store(out_ptr + 2 * C, tl.maximum(deviations, 0.0))


@kernel
def norm_gelu_kernel(
    y_ptr,
    normalization_ptr,
    running_mean_ptr,
    running_var_ptr,
    weight_ptr,
    bias_ptr,
    eps,
    out_ptr,
    T,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    ACTIVATES: tl.constexpr,
):
    """Compute factor * y + shift, and GELU of it if ``ACTIVATES``; ``out`` may be y.

    Without a normalization, factor and shift are computed from the running statistics.
    """
    COLUMNS: tl.constexpr = WIDTH // BLOCK_W
    row = tl.program_id(0) // COLUMNS * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(0) % COLUMNS * BLOCK_W + tl.arange(0, BLOCK_W)
    at, inside = _tile(row, column, T, C, WIDTH)
    c = column % C
    if normalization_ptr is not None:
        factor = tl.load(normalization_ptr + 2 * C + c)
        shift = tl.load(normalization_ptr + 3 * C + c)
    else:
        mean = tl.load(running_mean_ptr + c).to(tl.float32)
        var = tl.load(running_var_ptr + c).to(tl.float32)
        _, factor, shift = affine_map(mean, var, weight_ptr, bias_ptr, eps, c, C)
    x = tl.load(y_ptr + at, inside, other=0.0).to(tl.float32) * factor[None] + shift[None]
    if ACTIVATES:
        x = gelu(x)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def _gradient_of_norm(grad, y, normalization_ptr, c, C: tl.constexpr, ACTIVATES: tl.constexpr):
    """Return the gradient of BatchNorm's output, given the gradient of GELU's output."""
    if ACTIVATES:
        factor = tl.load(normalization_ptr + 2 * C + c)[None]
        shift = tl.load(normalization_ptr + 3 * C + c)[None]
        _, slope = gelu_and_slope(y * factor + shift)
        grad = grad * slope
    return grad


@kernel
def backward_sums_kernel(
    grad_ptr,
    y_ptr,
    normalization_ptr,
    sums_ptr,
    T,
    rows,
    ACTIVATES: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Add up the gradients of BatchNorm's bias and weight in each column of some rows."""
    PIXELS: tl.constexpr = WIDTH // C
    COLUMNS: tl.constexpr = WIDTH // BLOCK_W
    program = tl.program_id(0) // COLUMNS
    column = tl.program_id(0) % COLUMNS * BLOCK_W + tl.arange(0, BLOCK_W)
    c = column % C
    mean = tl.load(normalization_ptr + c)
    r = program * rows + tl.arange(0, BLOCK_R)
    of_bias = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    of_weight = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for start in tl.range(0, rows, BLOCK_R, num_stages=STAGES):
        at, inside = _tile(r + start, column, T, C, WIDTH)
        grad = tl.load(grad_ptr + at, inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + at, inside, other=0.0).to(tl.float32)
        grad = _gradient_of_norm(grad, y, normalization_ptr, c, C, ACTIVATES)
        of_bias += grad
        of_weight += grad * (y - mean[None])
    rstd = tl.load(normalization_ptr + C + c)
    out_ptr = sums_ptr + (program * PIXELS + column // C) * (2 * C) + c
    tl.store(out_ptr, tl.sum(of_bias, 0))
    tl.store(out_ptr + C, tl.sum(of_weight, 0) * rstd)


@kernel
def norm_gelu_backward_kernel(
    grad_ptr,
    y_ptr,
    normalization_ptr,
    sums_ptr,
    dy_ptr,
    T,
    ACTIVATES: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Compute the gradient of y from the sums over all pixels."""
    COLUMNS: tl.constexpr = WIDTH // BLOCK_W
    row = tl.program_id(0) // COLUMNS * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(0) % COLUMNS * BLOCK_W + tl.arange(0, BLOCK_W)
    c = column % C
    at, inside = _tile(row, column, T, C, WIDTH)
    grad = tl.load(grad_ptr + at, inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, inside, other=0.0).to(tl.float32)
    grad = _gradient_of_norm(grad, y, normalization_ptr, c, C, ACTIVATES)
    mean = tl.load(normalization_ptr + c)
    factor = tl.load(normalization_ptr + 2 * C + c)
    share = tl.load(normalization_ptr + 4 * C + c) * factor
    constant = tl.load(sums_ptr + c) * share
    slope = tl.load(sums_ptr + C + c) * share * tl.load(normalization_ptr + C + c)
    dy = factor[None] * grad - constant[None] - slope[None] * (y - mean[None])
    tl.store(dy_ptr + at, dy.to(dy_ptr.dtype.element_ty), inside)
