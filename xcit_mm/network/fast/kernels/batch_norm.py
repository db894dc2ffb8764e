"""BatchNorm between the kernels of the network, from statistics that other kernels collect.

In training, the kernel that writes a map also writes its *partials*, float32 (P, 3, C): for each of
P disjoint sets of pixels and each of C channels the number of pixels, their mean, and the sum of
their squared deviations from it. :func:`statistics` merges them by the formula of Chan, Golub and
LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances"), which keeps
its digits where the mean is much larger than the deviation. A set may be empty; its mean and
squared deviations may then be any finite numbers.

The result is the *normalization*, float32 (5, C), with the rows

    0 mean, 1 rstd, 2 factor, 3 shift, 4 share,

so that (y - mean) * rstd * weight + bias = factor * y + shift. The share is 1 / n for batch
statistics of n pixels in all processes, and 0 for running statistics. In the backward pass, let g
be the gradient of the output, x = (y - mean) * rstd, and S and T the sums of g and g * x over all
processes. In either case, the gradient of y is

    factor * (g - share * S - x * share * T).

S and T over the pixels of this process are the gradients of bias and weight.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from .launch import kernel, launch

BLOCK_C = 16  # channels of a program: few, so that there are many programs
BLOCK_P = 256  # partials that a program reads at once


def uses_batch_statistics(bn: _BatchNorm) -> bool:
    """Return whether BatchNorm normalizes by the statistics of its input."""
    return bn.training or bn.running_mean is None


def process_group(bn: _BatchNorm) -> dist.ProcessGroup | None:
    """Return the processes that share the statistics of a layer, or None if there are no others."""
    is_shared = isinstance(bn, nn.SyncBatchNorm) and bn.training
    if not (is_shared and dist.is_available() and dist.is_initialized()):
        return None
    group = bn.process_group or dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None


def statistics(
    partials: Tensor, bn: _BatchNorm, weight: Tensor, bias: Tensor, group: dist.ProcessGroup | None
) -> Tensor:
    """Return the normalization by batch statistics, and update the running statistics.

    Args:
        partials: See above.
        bn: The layer, in a state in which it uses batch statistics.
        weight: The weight (C,) of the layer.
        bias: The bias (C,) of the layer.
        group: The processes whose partials are merged, as :func:`process_group` returns them.

    Shape:
        (P, 3, C) to (5, C), both in float32.
    """
    P, _, C = partials.shape
    grid = (triton.cdiv(C, BLOCK_C),)
    blocks = dict(BLOCK_C=BLOCK_C, BLOCK_P=BLOCK_P, num_warps=8)
    if group is not None:
        local = partials.new_empty(1, 3, C)
        launch(merge_kernel, grid, partials, local, P, C, **blocks)
        P = dist.get_world_size(group)
        partials = partials.new_empty(P, 3, C)
        dist.all_gather_into_tensor(partials, local, group=group)
    running = bn.running_mean, bn.running_var, bn.num_batches_tracked
    if not (bn.training and bn.track_running_stats):
        running = None, None, None
    elif bn.momentum is None:  # the kernel reads the counter, so it cannot also update it
        bn.num_batches_tracked.add_(1)
    normalization = partials.new_empty(5, C)
    parameters = weight, bias, bn.eps, bn.momentum
    launch(statistics_kernel, grid, partials, *running, *parameters, normalization, P, C, **blocks)
    return normalization


def running_statistics(bn: _BatchNorm, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the normalization (5, C) by running statistics, in float32."""
    C = weight.shape[0]
    normalization = torch.empty(5, C, device=weight.device, dtype=torch.float32)
    args = bn.running_mean, bn.running_var, weight, bias, bn.eps, normalization, C
    launch(running_statistics_kernel, (triton.cdiv(C, 128),), *args, BLOCK_C=128, num_warps=1)
    return normalization


def sum_over_processes(sums: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sums of a backward pass over all processes; a new tensor if there are several."""
    if group is None:
        return sums
    sums = sums.clone()
    dist.all_reduce(sums, group=group)
    return sums


def differentiable_norm(
    normalization: Tensor, eps: float | None, group: dist.ProcessGroup | None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function of a map, a weight and a bias that normalizes with PyTorch operators.

    Args:
        normalization: The normalization that the kernels used.
        eps: The eps of the layer, or None if it used its running statistics.
        group: The processes that share the statistics of the layer.

    Raises:
        RuntimeError: If other processes share the statistics.
    """
    if group is not None:
        raise RuntimeError(
            'create_graph=True: BatchNorm that is synchronized over processes has no second '
            'derivatives: train in one process, or set norm_eval=True'
        )
    if eps is None:
        mean, var = normalization[0], normalization[1].square().reciprocal()
        return lambda x, weight, bias: F.batch_norm(x, mean, var, weight, bias, eps=0.0)
    return lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, True, eps=eps)


@triton.jit
def _merged(partials_ptr, c, P, C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr):
    """Return count, mean and sum of squared deviations of channels ``c`` over all partials."""
    p = tl.arange(0, BLOCK_P)
    # Means are added up as differences from the first one, which is of their size. The condition on
    # P is a block, because a comparison of scalars is no mask in Triton's interpreter.
    first = tl.load(partials_ptr + C + c, (c < C) & (c * 0 < P), other=0.0)
    counts = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    differences = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, P, BLOCK_P):
        row = (start + p)[:, None]
        inside = (row < P) & (c[None] < C)
        count = tl.load(partials_ptr + row * (3 * C) + c[None], inside, other=0.0)
        mean = tl.load(partials_ptr + row * (3 * C) + C + c[None], inside, other=0.0)
        counts += count
        differences += count * (mean - first[None])
    total = tl.sum(counts, 0)
    merged_mean = first + tl.sum(differences, 0) / tl.maximum(total, 1.0)
    squares = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, P, BLOCK_P):
        row = (start + p)[:, None]
        inside = (row < P) & (c[None] < C)
        count = tl.load(partials_ptr + row * (3 * C) + c[None], inside, other=0.0)
        mean = tl.load(partials_ptr + row * (3 * C) + C + c[None], inside, other=0.0)
        square = tl.load(partials_ptr + row * (3 * C) + 2 * C + c[None], inside, other=0.0)
        difference = mean - merged_mean[None]
        squares += square + count * difference * difference
    return total, merged_mean, tl.sum(squares, 0)


@kernel
def merge_kernel(
    partials_ptr, out_ptr, P, C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr
):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    count, mean, squares = _merged(partials_ptr, c, P, C, BLOCK_C, BLOCK_P)
    tl.store(out_ptr + c, count, c < C)
    tl.store(out_ptr + C + c, mean, c < C)
    tl.store(out_ptr + 2 * C + c, squares, c < C)


@triton.jit
def affine_map(mean, var, weight_ptr, bias_ptr, eps, c, C: tl.constexpr):
    """Return rstd, factor and shift of channels ``c``."""
    rstd = tl.rsqrt(var + eps)
    factor = tl.load(weight_ptr + c, c < C, other=0.0).to(tl.float32) * rstd
    bias = tl.load(bias_ptr + c, c < C, other=0.0).to(tl.float32)
    return rstd, factor, bias - mean * factor


@triton.jit
def _store_normalization(out_ptr, c, mean, var, weight_ptr, bias_ptr, eps, share, C: tl.constexpr):
    rstd, factor, shift = affine_map(mean, var, weight_ptr, bias_ptr, eps, c, C)
    tl.store(out_ptr + c, mean, c < C)
    tl.store(out_ptr + C + c, rstd, c < C)
    tl.store(out_ptr + 2 * C + c, factor, c < C)
    tl.store(out_ptr + 3 * C + c, shift, c < C)
    tl.store(out_ptr + 4 * C + c, share, c < C)


@kernel
def statistics_kernel(
    partials_ptr,
    running_mean_ptr,
    running_var_ptr,
    batches_ptr,
    weight_ptr,
    bias_ptr,
    eps,
    momentum,
    out_ptr,
    P,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Merge all partials; if momentum is None, average over all batches, as PyTorch does."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    count, mean, squares = _merged(partials_ptr, c, P, C, BLOCK_C, BLOCK_P)
    share = 1.0 / tl.maximum(count, 1.0)
    if running_mean_ptr is not None:
        if momentum is None:
            step = 1.0 / tl.load(batches_ptr).to(tl.float32)
        else:
            step = momentum
            if tl.program_id(0) == 0:
                tl.store(batches_ptr, tl.load(batches_ptr) + 1)
        step = tl.where(count > 0, step, 0.0)
        unbiased = squares / tl.maximum(count - 1.0, 1.0)
        running_mean = tl.load(running_mean_ptr + c, c < C, other=0.0).to(tl.float32)
        running_var = tl.load(running_var_ptr + c, c < C, other=0.0).to(tl.float32)
        running_mean += step * (mean - running_mean)
        running_var += step * (unbiased - running_var)
        tl.store(running_mean_ptr + c, running_mean.to(running_mean_ptr.dtype.element_ty), c < C)
        tl.store(running_var_ptr + c, running_var.to(running_var_ptr.dtype.element_ty), c < C)
    _store_normalization(out_ptr, c, mean, squares * share, weight_ptr, bias_ptr, eps, share, C)


@kernel
def running_statistics_kernel(
    running_mean_ptr,
    running_var_ptr,
    weight_ptr,
    bias_ptr,
    eps,
    out_ptr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.load(running_mean_ptr + c, c < C, other=0.0).to(tl.float32)
    var = tl.load(running_var_ptr + c, c < C, other=1.0).to(tl.float32)
    share = tl.zeros((BLOCK_C,), tl.float32)
    _store_normalization(out_ptr, c, mean, var, weight_ptr, bias_ptr, eps, share, C)
