"""Local patch interaction (section 3.3, arXiv 2106.09681) with its residual connection.

The branch is x + draw * gamma * LPI(LayerNorm(x)), where LPI is a depthwise 3x3 convolution, GELU,
BatchNorm, and another depthwise convolution. Four kernels compute it:

    x_hat = normalize(x)
    a     = GELU(k1 * (w x_hat + b) + b1)               and the partial statistics of a
    f, g  = factor and shift of BatchNorm
    y     = x + draw gamma (k2 * (f a + g) + b2)

The affine maps before the convolutions are folded into them: the taps are multiplied by w, and b
times the sum of the taps is added to the bias. Since a convolution pads with zeros and not with b,
only the taps that lie inside the image count.

The backward pass needs only x_hat and 1 / deviation. It computes p, the values before GELU, again.
No operation from the first convolution to the second mixes channels, so gradients are computed
without gamma, which may be as small as 1e-5, and are multiplied by it at the end, in float32.

A program slides over the rows of a tile and holds three rows of its input in registers. A thread
computes four neighboring columns, which share the values they read, and whose contributions to
sums over the tile are added up together.

Letters in shapes: B images, H x W = N tokens, C channels, P programs for each channel.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ...tokens import map_to_tokens, tokens_to_map
from .batch_norm import (
    differentiable_norm,
    process_group,
    running_statistics,
    statistics,
    sum_over_processes,
    uses_batch_statistics,
)
from .differentiable import asks_for_second, branch_gradients
from .gelu import gelu, gelu_and_slope
from .launch import kernel, launch
from .norm import normalize, normalize_backward
from .partial_sums import store, sum_of_parts

WIDE = tl.constexpr(4)  # neighboring columns of a thread
GROUPS = 4  # of such columns in a program
BLOCK_C = 64  # channels of a program
REGISTERS = 128  # of a thread, so that four programs share those of a multiprocessor
SUMMED = 8  # channels whose partial sums a program adds up
PROGRAMS = 2112  # sixteen for each of the 132 multiprocessors of an H100
SUMS = tl.constexpr(12)  # of a program in the backward pass of a convolution: nine taps, three more


@triton.jit
def _place(W, rows, C: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the first row of a program, first column of each group, channels, and an index.

    Columns and channels are tiles (GROUPS, BLOCK_C), like all values that a thread holds.
    """
    blocks: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    tile = tl.program_id(0) // blocks
    none = tl.zeros((GROUPS, BLOCK_C), tl.int32)
    c = none + ((tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C))[None]
    across = tl.cdiv(W, GROUPS * WIDE)
    w = none + ((tile % across) * (GROUPS * WIDE) + tl.arange(0, GROUPS) * WIDE)[:, None]
    index = tl.program_id(1) * (tl.num_programs(0) // blocks) + tile
    return (tile // across) * rows, w, c, index


@triton.jit
def _columns(w, c, W, C: tl.constexpr):
    """Return which of the columns w - 1 to w + 4 are inside the image."""
    # All comparisons are of blocks: those of scalars are no masks in Triton's interpreter.
    is_channel = c < C
    return (
        is_channel & (w > 0) & (w <= W),
        is_channel & (w < W),
        is_channel & (w + 1 < W),
        is_channel & (w + 2 < W),
        is_channel & (w + 3 < W),
        is_channel & (w + 4 < W),
    )


@triton.jit
def _channel(ptr, c, C: tl.constexpr):
    return tl.load(ptr + c, c < C, other=0.0).to(tl.float32)


@triton.jit
def _taps_of_row(k_ptr, c, C: tl.constexpr):
    """Return three taps of a kernel (C, 1, 3, 3)."""
    k_ptr += c * 9
    return (
        tl.load(k_ptr, c < C, other=0.0).to(tl.float32),
        tl.load(k_ptr + 1, c < C, other=0.0).to(tl.float32),
        tl.load(k_ptr + 2, c < C, other=0.0).to(tl.float32),
    )


@triton.jit
def _taps(k_ptr, c, C: tl.constexpr):
    """Return the nine taps of a kernel, row by row."""
    above = _taps_of_row(k_ptr, c, C)
    here = _taps_of_row(k_ptr + 3, c, C)
    below = _taps_of_row(k_ptr + 6, c, C)
    return above + here + below


@triton.jit
def _scaled(k, scale):
    return (
        k[0] * scale,
        k[1] * scale,
        k[2] * scale,
        k[3] * scale,
        k[4] * scale,
        k[5] * scale,
        k[6] * scale,
        k[7] * scale,
        k[8] * scale,
    )


@triton.jit
def _load_row(ptr, columns, w, c, r, H, W, C: tl.constexpr):
    """Return the columns w - 1 to w + 4 of row ``r`` of an image, with zeros outside the image."""
    ptr = (ptr + r.to(tl.int64) * (W * C)) + (w * C + c)
    row = w * 0 + r
    inside = (row >= 0) & (row < H)
    return (
        tl.load(ptr - C, columns[0] & inside, other=0.0),
        tl.load(ptr, columns[1] & inside, other=0.0),
        tl.load(ptr + C, columns[2] & inside, other=0.0),
        tl.load(ptr + 2 * C, columns[3] & inside, other=0.0),
        tl.load(ptr + 3 * C, columns[4] & inside, other=0.0),
        tl.load(ptr + 4 * C, columns[5] & inside, other=0.0),
    )


@triton.jit
def _to_float(row):
    return (
        row[0].to(tl.float32),
        row[1].to(tl.float32),
        row[2].to(tl.float32),
        row[3].to(tl.float32),
        row[4].to(tl.float32),
        row[5].to(tl.float32),
    )


@triton.jit
def _weighted(above, here, below, k, start, j: tl.constexpr):
    """Add the weighted neighbors of column j to ``start``, one fused operation for each of them."""
    y = start + k[0] * above[j]
    y = y + k[1] * above[j + 1]
    y = y + k[2] * above[j + 2]
    y = y + k[3] * here[j]
    y = y + k[4] * here[j + 1]
    y = y + k[5] * here[j + 2]
    y = y + k[6] * below[j]
    y = y + k[7] * below[j + 1]
    return y + k[8] * below[j + 2]


@triton.jit
def _correlated(above, here, below, x, sums, j: tl.constexpr):
    """Add x of column j times each of its neighbors to nine sums."""
    return (
        sums[0] + x * above[j],
        sums[1] + x * above[j + 1],
        sums[2] + x * above[j + 2],
        sums[3] + x * here[j],
        sums[4] + x * here[j + 1],
        sums[5] + x * here[j + 2],
        sums[6] + x * below[j],
        sums[7] + x * below[j + 1],
        sums[8] + x * below[j + 2],
    )


@triton.jit
def _flipped(k):
    """Return the taps of the transposed convolution."""
    return k[8], k[7], k[6], k[5], k[4], k[3], k[2], k[1], k[0]


@triton.jit
def _store_sums(ptr, index, c, sums, scale, more, C: tl.constexpr):
    """Store the partial sums of the flipped taps, multiplied by ``scale``, and three more."""
    c = tl.max(c, 0)
    ptr += index.to(tl.int64) * (SUMS * C) + c
    mask = c < C
    for i in tl.static_range(9):
        tl.store(ptr + (8 - i) * C, tl.sum(sums[i] * scale, 0), mask)
    for i in tl.static_range(3):
        tl.store(ptr + (9 + i) * C, tl.sum(more[i], 0), mask)


@triton.jit
def _add_constant(y, k, g, columns):
    """Add a row of taps times a constant ``g``, for the taps that are inside the image."""
    left, middle, right = g * k[0], g * k[1], g * k[2]
    return (
        y[0] + tl.where(columns[0], left, 0.0) + middle + tl.where(columns[2], right, 0.0),
        y[1] + tl.where(columns[1], left, 0.0) + middle + tl.where(columns[3], right, 0.0),
        y[2] + tl.where(columns[2], left, 0.0) + middle + tl.where(columns[4], right, 0.0),
        y[3] + tl.where(columns[3], left, 0.0) + middle + tl.where(columns[5], right, 0.0),
    )


@kernel
def convolution_kernel(
    x_ptr,
    f_ptr,
    g_ptr,
    k_ptr,
    bias_ptr,
    gamma_ptr,
    draw_ptr,
    residual_ptr,
    out_ptr,
    partials_ptr,
    H,
    W,
    rows,
    C: tl.constexpr,
    HAS_GELU: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Convolve f x + g; apply GELU, or multiply by gamma and draw and add the residual."""
    r0, w, c, index = _place(W, rows, C, GROUPS, BLOCK_C)
    image = tl.program_id(1).to(tl.int64) * H * W * C
    x_ptr += image
    g = _channel(g_ptr, c, C)
    bias = _channel(bias_ptr, c, C)
    scale = g * 0.0 + 1.0
    if residual_ptr is not None:
        scale = _channel(gamma_ptr, c, C)
        if draw_ptr is not None:
            scale = scale * tl.load(draw_ptr + tl.program_id(1))
    g = g * scale
    k = _taps(k_ptr, c, C)
    columns = _columns(w, c, W, C)
    sums_of_columns = k[0] + k[3] + k[6], k[1] + k[4] + k[7], k[2] + k[5] + k[8]
    bias = bias * scale
    biases = _add_constant((bias, bias, bias, bias), sums_of_columns, g, columns)
    k = _scaled(k, _channel(f_ptr, c, C) * scale)
    reference = tl.zeros((GROUPS, BLOCK_C), tl.float32)
    total = tl.zeros((GROUPS, BLOCK_C), tl.float32)
    squares = tl.zeros((GROUPS, BLOCK_C), tl.float32)
    above = _to_float(_load_row(x_ptr, columns, w, c, r0 - 1, H, W, C))
    here = _to_float(_load_row(x_ptr, columns, w, c, r0, H, W, C))
    for i in range(0, tl.minimum(rows, H - r0)):
        r = r0 + i
        below = _to_float(_load_row(x_ptr, columns, w, c, r + 1, H, W, C))
        y = (
            _weighted(above, here, below, k, biases[0], 0),
            _weighted(above, here, below, k, biases[1], 1),
            _weighted(above, here, below, k, biases[2], 2),
            _weighted(above, here, below, k, biases[3], 3),
        )
        if r == 0:
            y = _add_constant(y, _taps_of_row(k_ptr, c, C), -g, columns)
        if r == H - 1:
            y = _add_constant(y, _taps_of_row(k_ptr + 6, c, C), -g, columns)
        at = image + r.to(tl.int64) * (W * C)
        for j in tl.static_range(WIDE):
            value = y[j]
            mask = columns[j + 1]
            if HAS_GELU:
                value = gelu(value)
            if partials_ptr is not None:
                if j == 0:
                    reference = tl.where((w * 0 + r) == r0, value, reference)
                difference = tl.where(mask, value - reference, 0.0)
                total += difference
                squares += difference * difference
            if residual_ptr is not None:
                x_ptrs = (residual_ptr + at) + (w * C + c) + j * C
                value += tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
            store((out_ptr + at) + (w * C + c) + j * C, value, mask)
        above, here = here, below
    if partials_ptr is not None:
        # The statistics of each group, merged by Chan's formula (see batch_norm).
        columns = tl.minimum(tl.maximum(W - w, 0), WIDE)
        count = (columns * tl.minimum(H - r0, rows)).to(tl.float32)
        shift = total / tl.maximum(count, 1.0)
        squares -= total * shift
        mean = reference + shift
        number = tl.sum(count, 0)
        merged = tl.sum(count * mean, 0) / number
        squares += count * (mean - merged[None]) * (mean - merged[None])
        c = tl.max(c, 0)
        partials_ptr += index.to(tl.int64) * (3 * C) + c
        tl.store(partials_ptr, number, c < C)
        tl.store(partials_ptr + C, merged, c < C)
        tl.store(partials_ptr + 2 * C, tl.sum(squares, 0), c < C)


@kernel
def second_backward_kernel(
    dy_ptr,
    p_ptr,
    normalization_ptr,
    bn_bias_ptr,
    k_ptr,
    draw_ptr,
    dv_ptr,
    sums_ptr,
    H,
    W,
    rows,
    C: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of the second convolution, whose input is v = BatchNorm(GELU(p)).

    Also compute the sums of dv and of dv times the normalized values, which BatchNorm needs. The
    gradients do not include gamma.
    """
    r0, w, c, index = _place(W, rows, C, GROUPS, BLOCK_C)
    image = tl.program_id(1).to(tl.int64) * H * W * C
    dy_ptr += image
    mean = _channel(normalization_ptr, c, C)
    factor = _channel(normalization_ptr + 2 * C, c, C)
    bn_bias = _channel(bn_bias_ptr, c, C)
    draw = factor * 0.0 + 1.0
    if draw_ptr is not None:
        draw = draw * tl.load(draw_ptr + tl.program_id(1))
    k = _scaled(_flipped(_taps(k_ptr, c, C)), draw)
    columns = _columns(w, c, W, C)
    zero = tl.zeros((GROUPS, BLOCK_C), tl.float32)
    sums = zero, zero, zero, zero, zero, zero, zero, zero, zero
    dy_sum = zero
    dv_sum = zero
    product_sum = zero
    above = _to_float(_load_row(dy_ptr, columns, w, c, r0 - 1, H, W, C))
    here = _to_float(_load_row(dy_ptr, columns, w, c, r0, H, W, C))
    for i in range(0, tl.minimum(rows, H - r0)):
        r = r0 + i
        below = _to_float(_load_row(dy_ptr, columns, w, c, r + 1, H, W, C))
        at = image + r.to(tl.int64) * (W * C)
        for j in tl.static_range(WIDE):
            mask = columns[j + 1]
            p = tl.load((p_ptr + at) + (w * C + c) + j * C, mask, other=0.0).to(tl.float32)
            centered = gelu(p) - mean
            v = tl.where(mask, centered * factor + bn_bias, 0.0)
            sums = _correlated(above, here, below, v, sums, j)
            dy_sum += here[j + 1]
            dv = _weighted(above, here, below, k, 0.0, j)
            store((dv_ptr + at) + (w * C + c) + j * C, dv, mask)
            dv = tl.where(mask, dv, 0.0)
            dv_sum += dv
            product_sum += dv * centered
        above, here = here, below
    more = dy_sum * draw, dv_sum, product_sum * _channel(normalization_ptr + C, c, C)
    _store_sums(sums_ptr, index, c, sums, draw, more, C)


@triton.jit
def _gelu_norm_backward(dv, p, s, t, mask):
    """Return the gradient of p without BatchNorm's factor, from the gradient dv of its output."""
    value, slope = gelu_and_slope(p.to(tl.float32))
    return tl.where(mask, (dv.to(tl.float32) - s - value * t) * slope, 0.0)


@triton.jit
def _row_of_dp(dv_ptr, p_ptr, s, t, columns, w, c, r, H, W, C: tl.constexpr):
    """Return the columns w - 1 to w + 4 of a row of the gradient of p."""
    dv = _load_row(dv_ptr, columns, w, c, r, H, W, C)
    p = _load_row(p_ptr, columns, w, c, r, H, W, C)
    row = w * 0 + r
    inside = (row >= 0) & (row < H)
    return (
        _gelu_norm_backward(dv[0], p[0], s, t, columns[0] & inside),
        _gelu_norm_backward(dv[1], p[1], s, t, columns[1] & inside),
        _gelu_norm_backward(dv[2], p[2], s, t, columns[2] & inside),
        _gelu_norm_backward(dv[3], p[3], s, t, columns[3] & inside),
        _gelu_norm_backward(dv[4], p[4], s, t, columns[4] & inside),
        _gelu_norm_backward(dv[5], p[5], s, t, columns[5] & inside),
    )


@kernel
def first_backward_kernel(
    dv_ptr,
    p_ptr,
    x_hat_ptr,
    normalization_ptr,
    bn_sums_ptr,
    gamma_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    k_ptr,
    dx_hat_ptr,
    sums_ptr,
    H,
    W,
    rows,
    C: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of the first convolution, whose input is u = w x_hat + b."""
    r0, w, c, index = _place(W, rows, C, GROUPS, BLOCK_C)
    image = tl.program_id(1).to(tl.int64) * H * W * C
    dv_ptr += image
    p_ptr += image
    mean = _channel(normalization_ptr, c, C)
    share = _channel(normalization_ptr + 4 * C, c, C)
    t = share * _channel(bn_sums_ptr + C, c, C) * _channel(normalization_ptr + C, c, C)
    s = share * _channel(bn_sums_ptr, c, C) - mean * t
    scale = _channel(normalization_ptr + 2 * C, c, C) * _channel(gamma_ptr, c, C)
    weight = _channel(norm_weight_ptr, c, C)
    bias = _channel(norm_bias_ptr, c, C)
    k = _scaled(_flipped(_taps(k_ptr, c, C)), scale)
    columns = _columns(w, c, W, C)
    zero = tl.zeros((GROUPS, BLOCK_C), tl.float32)
    sums = zero, zero, zero, zero, zero, zero, zero, zero, zero
    dp_sum = zero
    du_sum = zero
    product_sum = zero
    above = _row_of_dp(dv_ptr, p_ptr, s, t, columns, w, c, r0 - 1, H, W, C)
    here = _row_of_dp(dv_ptr, p_ptr, s, t, columns, w, c, r0, H, W, C)
    for i in range(0, tl.minimum(rows, H - r0)):
        r = r0 + i
        below = _row_of_dp(dv_ptr, p_ptr, s, t, columns, w, c, r + 1, H, W, C)
        at = image + r.to(tl.int64) * (W * C)
        for j in tl.static_range(WIDE):
            mask = columns[j + 1]
            x_ptrs = (x_hat_ptr + at) + (w * C + c) + j * C
            x_hat = tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
            u = tl.where(mask, x_hat * weight + bias, 0.0)
            sums = _correlated(above, here, below, u, sums, j)
            dp_sum += here[j + 1]
            du = _weighted(above, here, below, k, 0.0, j)
            store((dx_hat_ptr + at) + (w * C + c) + j * C, du * weight, mask)
            du_sum += tl.where(mask, du, 0.0)
            product_sum += du * x_hat
        above, here = here, below
    _store_sums(sums_ptr, index, c, sums, scale, (dp_sum * scale, product_sum, du_sum), C)


@kernel
def second_sums_kernel(
    sums_ptr,
    gamma_ptr,
    k_ptr,
    bias_ptr,
    bn_sums_ptr,
    dgamma_ptr,
    dk_ptr,
    dbias_ptr,
    dbn_weight_ptr,
    dbn_bias_ptr,
    P,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Finish the gradients of the second convolution, gamma and BatchNorm."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = c < C
    gamma = tl.load(gamma_ptr + c, mask, other=0.0).to(tl.float32)
    total = sum_of_parts(sums_ptr + 9 * C, c, P, SUMS * C, C, BLOCK_P)
    store(dbias_ptr + c, gamma * total, mask)
    dgamma = total * tl.load(bias_ptr + c, mask, other=0.0).to(tl.float32)
    for i in tl.static_range(9):
        total = sum_of_parts(sums_ptr + i * C, c, P, SUMS * C, C, BLOCK_P)
        store(dk_ptr + c * 9 + i, gamma * total, mask)
        dgamma += total * tl.load(k_ptr + c * 9 + i, mask, other=0.0).to(tl.float32)
    store(dgamma_ptr + c, dgamma, mask)
    total = sum_of_parts(sums_ptr + 10 * C, c, P, SUMS * C, C, BLOCK_P)
    tl.store(bn_sums_ptr + c, total, mask)
    store(dbn_bias_ptr + c, gamma * total, mask)
    total = sum_of_parts(sums_ptr + 11 * C, c, P, SUMS * C, C, BLOCK_P)
    tl.store(bn_sums_ptr + C + c, total, mask)
    store(dbn_weight_ptr + c, gamma * total, mask)


@kernel
def first_sums_kernel(
    sums_ptr,
    dk_ptr,
    dbias_ptr,
    dnorm_weight_ptr,
    dnorm_bias_ptr,
    P,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Finish the gradients of the first convolution and LayerNorm."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = c < C
    for i in tl.static_range(9):
        store(dk_ptr + c * 9 + i, sum_of_parts(sums_ptr + i * C, c, P, SUMS * C, C, BLOCK_P), mask)
    store(dbias_ptr + c, sum_of_parts(sums_ptr + 9 * C, c, P, SUMS * C, C, BLOCK_P), mask)
    store(dnorm_weight_ptr + c, sum_of_parts(sums_ptr + 10 * C, c, P, SUMS * C, C, BLOCK_P), mask)
    store(dnorm_bias_ptr + c, sum_of_parts(sums_ptr + 11 * C, c, P, SUMS * C, C, BLOCK_P), mask)


class _Tiles:
    """The programs that share the work on maps of B images of C channels and H x W tokens."""

    def __init__(self, B: int, H: int, W: int, C: int) -> None:
        columns = triton.cdiv(W, GROUPS * WIDE.value)
        blocks = triton.cdiv(C, BLOCK_C)
        rows = triton.cdiv(H, max(1, PROGRAMS // max(1, B * columns * blocks)))
        tiles = columns * triton.cdiv(H, rows)
        self.size = H, W, rows
        self.grid = blocks * tiles, B
        self.P = B * tiles

    def launch(self, kernel, C: int, *args: Tensor | None, **options: bool) -> None:
        blocks = dict(GROUPS=GROUPS, BLOCK_C=BLOCK_C, num_warps=4, maxnreg=REGISTERS)
        launch(kernel, self.grid, *args, *self.size, C=C, **blocks, **options)


def interaction_branch(
    x: Tensor,
    H: int,
    W: int,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    conv1_weight: Tensor,
    conv1_bias: Tensor,
    bn: _BatchNorm,
    bn_weight: Tensor,
    bn_bias: Tensor,
    conv2_weight: Tensor,
    conv2_bias: Tensor,
    gamma: Tensor,
    draw: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x + draw * gamma * LPI(LayerNorm(x)).

    Args:
        x: Tokens.
        H: Rows of tokens.
        W: Columns of tokens.
        norm_weight: Weight (C,) of LayerNorm.
        norm_bias: Bias (C,) of LayerNorm.
        eps: Added to the variances of LayerNorm.
        conv1_weight: Weight (C, 1, 3, 3) of the first convolution.
        conv1_bias: Bias (C,) of the first convolution.
        bn: The layer between the convolutions, whose state selects batch or running statistics, and
            whose running statistics are updated.
        bn_weight: Weight (C,) of ``bn``.
        bn_bias: Bias (C,) of ``bn``.
        conv2_weight: Weight (C, 1, 3, 3) of the second convolution.
        conv2_bias: Bias (C,) of the second convolution.
        gamma: LayerScale (C,).
        draw: Factor (B,) of each image in float32, for stochastic depth.
        dtype: The dtype of tensors between the kernels. Default: the dtype of x.

    Shape:
        (B, N, C) to (B, N, C), N = H * W, in the dtype of x.
    """
    norm = norm_weight, norm_bias
    convolutions = conv1_weight, conv1_bias, conv2_weight, conv2_bias
    options = (H, W), eps, bn, draw, dtype or x.dtype
    return _Interaction.apply(x, *norm, *convolutions, bn_weight, bn_bias, gamma, *options)[0]


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        conv1_weight: Tensor,
        conv1_bias: Tensor,
        conv2_weight: Tensor,
        conv2_bias: Tensor,
        bn_weight: Tensor,
        bn_bias: Tensor,
        gamma: Tensor,
        size: tuple[int, int],
        eps: float,
        bn: _BatchNorm,
        draw: Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and, for second derivatives, x_hat and 1 / deviation."""
        ctx.set_materialize_grads(False)
        x = x.contiguous()
        B, _, C = x.shape
        tiles = _Tiles(B, *size, C)
        has_batch_statistics = uses_batch_statistics(bn)
        x_hat, rstd = normalize(x, eps, dtype)
        partials = x.new_empty(tiles.P, 3, C, dtype=torch.float32) if has_batch_statistics else None
        values = torch.empty_like(x_hat)
        first = x_hat, norm_weight, norm_bias, conv1_weight, conv1_bias
        args = *first, None, None, None, values, partials
        tiles.launch(convolution_kernel, C, *args, HAS_GELU=True)
        if has_batch_statistics:
            normalization = statistics(partials, bn, bn_weight, bn_bias, process_group(bn))
        else:
            normalization = running_statistics(bn, bn_weight, bn_bias)
        out = torch.empty_like(x)
        second = values, normalization[2], normalization[3], conv2_weight, conv2_bias
        args = *second, gamma, draw, x, out, None
        tiles.launch(convolution_kernel, C, *args, HAS_GELU=False)
        ctx.tiles, ctx.group = tiles, process_group(bn)
        ctx.eps = bn.eps if has_batch_statistics else None
        parameters = norm_weight, norm_bias, conv1_weight, conv1_bias, conv2_weight, conv2_bias
        state = x_hat, rstd, normalization, draw
        ctx.save_for_backward(*state, *parameters, bn_weight, bn_bias, gamma)
        return out, x_hat, rstd

    @staticmethod
    def backward(ctx, dy: Tensor | None, *of_norm: Tensor | None) -> tuple[Tensor | None, ...]:
        x_hat, rstd, normalization, draw, *parameters = ctx.saved_tensors
        if asks_for_second(dy, *of_norm):
            normalize_again = differentiable_norm(normalization, ctx.eps, ctx.group)
            function = partial(_interaction, ctx.tiles.size[:2], normalize_again)
            args = x_hat, rstd, (*parameters, draw), dy, *of_norm
            dx, (*gradients, _) = branch_gradients(function, *args)
            return dx, *gradients, *[None] * 5
        norm_weight, norm_bias, k1, bias1, k2, bias2, _, bn_bias, gamma = parameters
        tiles, C = ctx.tiles, x_hat.shape[-1]
        dy = dy.contiguous()
        p = torch.empty_like(x_hat)
        args = x_hat, norm_weight, norm_bias, k1, bias1, None, None, None, p, None
        tiles.launch(convolution_kernel, C, *args, HAS_GELU=False)
        sums = x_hat.new_empty(tiles.P, SUMS.value, C, dtype=torch.float32)
        dv = torch.empty_like(x_hat)
        args = dy, p, normalization, bn_bias, k2, draw, dv, sums
        tiles.launch(second_backward_kernel, C, *args)
        gradients = [torch.empty_like(parameter) for parameter in parameters]
        dnorm_weight, dnorm_bias, dk1, dbias1, dk2, dbias2, dbn_weight, dbn_bias, dgamma = gradients
        bn_sums = sums.new_empty(2, C)
        results = bn_sums, dgamma, dk2, dbias2, dbn_weight, dbn_bias
        _finish(second_sums_kernel, sums, gamma, k2, bias2, *results)
        bn_sums = sum_over_processes(bn_sums, ctx.group)
        dx_hat = torch.empty_like(x_hat)
        args = dv, p, x_hat, normalization, bn_sums, gamma, norm_weight, norm_bias, k1, dx_hat, sums
        tiles.launch(first_backward_kernel, C, *args)
        _finish(first_sums_kernel, sums, dk1, dbias1, dnorm_weight, dnorm_bias)
        dx = normalize_backward(dx_hat, x_hat, rstd, dy)
        return dx, *gradients, *[None] * 5


def _interaction(
    size: tuple[int, int],
    normalize_again: Callable[[Tensor, Tensor, Tensor], Tensor],
    x_hat: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    conv1_weight: Tensor,
    conv1_bias: Tensor,
    conv2_weight: Tensor,
    conv2_bias: Tensor,
    bn_weight: Tensor,
    bn_bias: Tensor,
    gamma: Tensor,
    draw: Tensor | None,
) -> Tensor:
    """Compute what is added to the residual connection with PyTorch operators."""
    x = tokens_to_map(x_hat * norm_weight + norm_bias, *size)
    x = F.gelu(F.conv2d(x, conv1_weight, conv1_bias, padding=1, groups=x.shape[1]))
    x = normalize_again(x, bn_weight, bn_bias)
    x = F.conv2d(x, conv2_weight, conv2_bias, padding=1, groups=x.shape[1])
    y = gamma * map_to_tokens(x)
    return y if draw is None else draw[:, None, None] * y


def _finish(kernel, sums: Tensor, *args: Tensor) -> None:
    P, _, C = sums.shape
    grid = (triton.cdiv(C, SUMMED),)
    launch(kernel, grid, sums, *args, P, C=C, BLOCK_C=SUMMED, BLOCK_P=128, num_warps=4)
