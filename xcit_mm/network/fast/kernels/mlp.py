"""The MLP of a block (section 3, arXiv 2106.09681) with its residual connection.

The branch is x + draw * gamma * MLP(LayerNorm(x)), where MLP is a linear layer to 4 C channels,
GELU, and a linear layer back to C channels. cuBLAS computes the products, and the kernels here
compute everything between them:

    x_hat = normalize(x)
    h     = W1' x_hat + b1',        W1' = W1 w,  b1' = b1 + W1 b       with LayerNorm's w and b
    y     = x + draw gamma (W2 GELU(h) + b2)

The backward pass needs x_hat, 1 / deviation and h, and computes GELU again. With dW1' = dh^T x_hat,
the gradients of W1, w and b are

    dW1 = dW1' w + db1 b^T,    dw = sum of W1 dW1' over the outputs,    db = W1^T db1.

The gradients of W2 and gamma are computed from dW2' = dv^T GELU(h), dv = draw dy: dW2 = gamma dW2',
and dgamma = sum of W2 dW2' over the inputs + b2 db2'. Gamma may be as small as 1e-5. Therefore, it
is divided by its largest value, the *scale*, before 16-bit values are multiplied by it. What is
computed from them is in units of the scale, and is multiplied by the scale once it is in float32.

Letters in shapes: B images, N tokens, T = B * N, C channels, P programs for each channel.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from ..tracing import without_autocast
from .differentiable import asks_for_second, branch_gradients
from .gelu import gelu, gelu_and_slope
from .launch import kernel, launch
from .norm import normalize, normalize_backward
from .partial_sums import store, sum_of_parts

# On CUDA, the product of 16-bit matrices can be returned in float32: PyTorch 2.8 and later.
MM_HAS_OUT_DTYPE = 'dtype' in torch.ops.aten.mm.overloads()
PROGRAMS = 2112  # sixteen for each of the 132 multiprocessors of an H100
BLOCK_C = 128  # channels of a program, and of a tile
BLOCK_N = 16  # tokens of a tile
FLAT = 2048  # values of a program that treats each by itself
FOLDED = 4  # outputs of fc1 whose weights a program folds
SUMMED = 16  # channels whose partial sums a program adds up
UNFOLDED = 8  # channels whose gradients a program finishes


@kernel
def fold_kernel(
    fc1_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    fc2_ptr,
    folded_ptr,
    folded_bias_ptr,
    cast_ptr,
    C: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Fold LayerNorm into fc1, and cast as many weights of fc2 if they have another dtype."""
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    c = tl.arange(0, BLOCK_C)
    mask = (o < 4 * C)[:, None] & (c < C)[None]
    at = o[:, None] * C + c[None]
    W = tl.load(fc1_ptr + at, mask, other=0.0).to(tl.float32)
    weight = tl.load(norm_weight_ptr + c, c < C, other=0.0).to(tl.float32)
    bias = tl.load(norm_bias_ptr + c, c < C, other=0.0).to(tl.float32)
    store(folded_ptr + at, W * weight[None], mask)
    folded_bias = tl.load(bias_ptr + o, o < 4 * C, other=0.0).to(tl.float32)
    store(folded_bias_ptr + o, folded_bias + tl.sum(W * bias[None], 1), o < 4 * C)
    if cast_ptr is not None:
        store(cast_ptr + at, tl.load(fc2_ptr + at, mask, other=0.0), mask)


@kernel
def gelu_kernel(h_ptr, out_ptr, size, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(h_ptr + i, i < size, other=0.0).to(tl.float32)
    store(out_ptr + i, gelu(h), i < size)


@kernel
def residual_kernel(
    x_ptr,
    y_ptr,
    bias_ptr,
    gamma_ptr,
    draw_ptr,
    out_ptr,
    N,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute x + draw * gamma * (y + bias)."""
    blocks: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    n = (tl.program_id(0) // blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = (tl.program_id(1).to(tl.int64) * N + n)[:, None] * C + c[None]
    mask = (n < N)[:, None] & (c < C)[None]
    bias = tl.load(bias_ptr + c, c < C, other=0.0).to(tl.float32)
    scale = tl.load(gamma_ptr + c, c < C, other=0.0).to(tl.float32)
    if draw_ptr is not None:
        scale *= tl.load(draw_ptr + tl.program_id(1))
    y = tl.load(y_ptr + at, mask, other=0.0).to(tl.float32) + bias[None]
    x = tl.load(x_ptr + at, mask, other=0.0).to(tl.float32)
    store(out_ptr + at, x + y * scale[None], mask)


@kernel
def cast_kernel(
    dy_ptr,
    gamma_ptr,
    draw_ptr,
    dv_ptr,
    scaled_ptr,
    scale_ptr,
    sums_ptr,
    N,
    rows,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALL_C: tl.constexpr,
):
    """Store dv = draw * dy and gamma / scale * dv, and add up dv over the tokens of a program."""
    blocks: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    program, image = tl.program_id(0) // blocks, tl.program_id(1)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    every = tl.arange(0, ALL_C)
    gammas = tl.load(gamma_ptr + every, every < C, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(gammas), 0), 1e-30)
    gamma = tl.load(gamma_ptr + c, c < C, other=0.0).to(tl.float32) / scale
    if (tl.program_id(0) == 0) & (image == 0):
        tl.store(scale_ptr, scale)
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    first = program * rows
    for start in range(first, first + rows, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        at = (image.to(tl.int64) * N + n)[:, None] * C + c[None]
        mask = (n < N)[:, None] & (c < C)[None]
        dv = tl.load(dy_ptr + at, mask, other=0.0).to(tl.float32)
        if draw_ptr is not None:
            dv *= tl.load(draw_ptr + image)
        total += dv
        store(dv_ptr + at, dv, mask)
        store(scaled_ptr + at, dv * gamma[None], mask)
    programs = tl.num_programs(0) // blocks
    tl.store(sums_ptr + (image * programs + program) * C + c, tl.sum(total, 0), c < C)


@kernel
def gelu_backward_kernel(
    dh_ptr,
    h_ptr,
    value_ptr,
    sums_ptr,
    T,
    rows,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Multiply dh by GELU'(h) in place; store GELU(h) and partial sums of dh over the tokens."""
    blocks: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    first = program * rows
    for start in range(first, first + rows, BLOCK_N):
        t = start + tl.arange(0, BLOCK_N)
        at = t.to(tl.int64)[:, None] * C + c[None]
        mask = (t < T)[:, None] & (c < C)[None]
        value, slope = gelu_and_slope(tl.load(h_ptr + at, mask, other=0.0).to(tl.float32))
        dh = tl.load(dh_ptr + at, mask, other=0.0).to(tl.float32) * slope
        total += dh
        store(value_ptr + at, value, mask)
        store(dh_ptr + at, dh, mask)
    tl.store(sums_ptr + program * C + c, tl.sum(total, 0), c < C)


@kernel
def sums_kernel(
    fc1_sums_ptr,
    fc2_sums_ptr,
    scale_ptr,
    gamma_ptr,
    fc1_total_ptr,
    fc2_total_ptr,
    dbias1_ptr,
    dbias2_ptr,
    P1,
    P2,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up the partial sums of dh, and of dv, for the gradients of both biases."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = sum_of_parts(fc1_sums_ptr, c, P1, 4 * C, 4 * C, BLOCK_P) * tl.load(scale_ptr)
    tl.store(fc1_total_ptr + c, total, c < 4 * C)
    store(dbias1_ptr + c, total, c < 4 * C)
    if tl.program_id(0) * BLOCK_C < C:
        total = sum_of_parts(fc2_sums_ptr, c, P2, C, C, BLOCK_P)
        gamma = tl.load(gamma_ptr + c, c < C, other=0.0).to(tl.float32)
        tl.store(fc2_total_ptr + c, total, c < C)
        store(dbias2_ptr + c, total * gamma, c < C)


@kernel
def unfold_kernel(
    product1_ptr,
    product2_ptr,
    total1_ptr,
    total2_ptr,
    scale_ptr,
    fc1_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    fc2_ptr,
    bias2_ptr,
    gamma_ptr,
    dfc1_ptr,
    dnorm_weight_ptr,
    dnorm_bias_ptr,
    dfc2_ptr,
    dgamma_ptr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Turn dW1' (4 C, C) and dW2' (C, 4 C) into the gradients of the parameters.

    One half of the programs handles the inputs of fc1, the other half the outputs of fc2.
    """
    programs = tl.num_programs(0) // 2
    c = (tl.program_id(0) % programs) * BLOCK_C + tl.arange(0, BLOCK_C)
    products = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    if tl.program_id(0) < programs:
        scale = tl.load(scale_ptr)
        weight = tl.load(norm_weight_ptr + c, c < C, other=0.0).to(tl.float32)
        bias = tl.load(norm_bias_ptr + c, c < C, other=0.0).to(tl.float32)
        biases = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
        for start in range(0, 4 * C, BLOCK_O):
            o = start + tl.arange(0, BLOCK_O)
            at = o[:, None] * C + c[None]
            mask = (o < 4 * C)[:, None] & (c < C)[None]
            W = tl.load(fc1_ptr + at, mask, other=0.0).to(tl.float32)
            dW = tl.load(product1_ptr + at, mask, other=0.0) * scale
            total = tl.load(total1_ptr + o, o < 4 * C, other=0.0)[:, None]
            products += W * dW
            biases += W * total
            store(dfc1_ptr + at, dW * weight[None] + total * bias[None], mask)
        store(dnorm_weight_ptr + c, tl.sum(products, 0), c < C)
        store(dnorm_bias_ptr + c, tl.sum(biases, 0), c < C)
    else:
        gamma = tl.load(gamma_ptr + c, c < C, other=0.0).to(tl.float32)
        total = tl.load(total2_ptr + c, c < C, other=0.0)
        dgamma = total * tl.load(bias2_ptr + c, c < C, other=0.0).to(tl.float32)
        for start in range(0, 4 * C, BLOCK_O):
            i = start + tl.arange(0, BLOCK_O)
            at = c[None] * (4 * C) + i[:, None]
            mask = (i < 4 * C)[:, None] & (c < C)[None]
            W = tl.load(fc2_ptr + at, mask, other=0.0).to(tl.float32)
            dW = tl.load(product2_ptr + at, mask, other=0.0)
            products += W * dW
            store(dfc2_ptr + at, dW * gamma[None], mask)
        store(dgamma_ptr + c, dgamma + tl.sum(products, 0), c < C)


class FoldedMlp(NamedTuple):
    """The weights of an MLP in the form that its products use.

    ``fc1_weight`` (4 C, C) and ``fc1_bias`` (4 C,) contain LayerNorm; ``fc2_weight`` is (C, 4 C).
    """

    fc1_weight: Tensor
    fc1_bias: Tensor
    fc2_weight: Tensor


def fold_mlp(
    norm_weight: Tensor,
    norm_bias: Tensor,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    dtype: torch.dtype,
) -> FoldedMlp:
    """Fold the weight and bias (C,) of LayerNorm into fc1, and return all weights in ``dtype``."""
    C = norm_weight.shape[0]
    weight = torch.empty_like(fc1_weight, dtype=dtype)
    bias = torch.empty_like(fc1_bias, dtype=dtype)
    cast = None if fc2_weight.dtype == dtype else torch.empty_like(fc2_weight, dtype=dtype)
    args = fc1_weight, fc1_bias, norm_weight, norm_bias, fc2_weight, weight, bias, cast
    blocks = dict(BLOCK_O=FOLDED, BLOCK_C=triton.next_power_of_2(C))
    launch(fold_kernel, (triton.cdiv(4 * C, FOLDED),), *args, C=C, **blocks)
    return FoldedMlp(weight, bias, fc2_weight if cast is None else cast)


def mlp_branch(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    fc2_bias: Tensor,
    gamma: Tensor,
    draw: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x + draw * gamma * MLP(LayerNorm(x)).

    Args:
        x: Tokens.
        norm_weight: Weight (C,) of LayerNorm.
        norm_bias: Bias (C,) of LayerNorm.
        eps: Added to the variances of LayerNorm.
        fc1_weight: Weight (4 C, C) of the first linear layer.
        fc1_bias: Bias (4 C,) of the first linear layer.
        fc2_weight: Weight (C, 4 C) of the second linear layer.
        fc2_bias: Bias (C,) of the second linear layer.
        gamma: LayerScale (C,).
        draw: Factor (B,) of each image in float32, for stochastic depth.
        dtype: The dtype between the kernels and products. Default: the dtype of x.

    Shape:
        (B, N, C) to (B, N, C), in the dtype of x.
    """
    weights = norm_weight, norm_bias, fc1_weight, fc1_bias, fc2_weight, fc2_bias, gamma
    options = eps, draw, dtype or x.dtype
    if torch.is_grad_enabled():
        return _Mlp.apply(x, *weights, *options)[0]
    return _forward(x, *weights, *options)[0]


def _forward(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    fc2_bias: Tensor,
    gamma: Tensor,
    eps: float,
    draw: Tensor | None,
    dtype: torch.dtype,
    keeps: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, FoldedMlp]:
    """Return the output, x_hat, 1 / deviation, h, and the folded weights.

    h is overwritten by GELU(h) unless ``keeps`` is set, because the backward pass needs it.
    """
    x = x.contiguous()
    B, N, C = x.shape
    folded = fold_mlp(norm_weight, norm_bias, fc1_weight, fc1_bias, fc2_weight, dtype)
    x_hat, rstd = normalize(x, eps, dtype)
    with without_autocast(x):
        h = torch.addmm(folded.fc1_bias, x_hat.view(-1, C), folded.fc1_weight.t())
        values = torch.empty_like(h) if keeps else h
        launch(gelu_kernel, (triton.cdiv(h.numel(), FLAT),), h, values, h.numel(), BLOCK=FLAT)
        y = torch.mm(values, folded.fc2_weight.t())
    out = torch.empty_like(x)
    grid = triton.cdiv(N, BLOCK_N) * triton.cdiv(C, BLOCK_C), B
    args = x, y, fc2_bias, gamma, draw, out, N
    launch(residual_kernel, grid, *args, C=C, BLOCK_N=BLOCK_N, BLOCK_C=BLOCK_C)
    return out, x_hat, rstd, h, folded


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, *args: Tensor | float | torch.dtype | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and, for second derivatives, x_hat and 1 / deviation."""
        ctx.set_materialize_grads(False)
        *weights, _, draw, _ = args
        out, x_hat, rstd, h, folded = _forward(x, *args, keeps=True)
        kept = x_hat, rstd, h, draw, folded.fc1_weight, folded.fc2_weight
        ctx.save_for_backward(*kept, *weights)
        return out, x_hat, rstd

    @staticmethod
    def backward(ctx, dy: Tensor | None, *of_norm: Tensor | None) -> tuple[Tensor | None, ...]:
        x_hat, rstd, h, draw, folded1, folded2, *weights = ctx.saved_tensors
        if asks_for_second(dy, *of_norm):
            args = x_hat, rstd, (*weights, draw), dy, *of_norm
            dx, (*gradients, _) = branch_gradients(_mlp, *args)
            return dx, *gradients, *[None] * 3
        norm_weight, norm_bias, fc1_weight, _, fc2_weight, fc2_bias, gamma = weights
        gradients = [torch.empty_like(weight) for weight in weights]
        dnorm_weight, dnorm_bias, dfc1, dbias1, dfc2, dbias2, dgamma = gradients
        if not len(dy):  # no program would store the scale
            return dy, *(gradient.zero_() for gradient in gradients), *[None] * 3
        dy = dy.contiguous()
        dv, scaled, scale, fc2_sums = _cast(dy, gamma, draw, x_hat.dtype)
        with without_autocast(dy):
            dh = torch.mm(scaled, folded2)
            values, fc1_sums = _gelu_backward_(dh, h)
            product2 = _weight_gradient(dv, values)
            product1 = _weight_gradient(dh, x_hat.flatten(0, 1))
            dx_hat = torch.mm(dh, folded1).view_as(x_hat)
        C = gamma.shape[0]
        total1, total2 = fc1_sums.new_empty(4 * C), fc1_sums.new_empty(C)
        args = fc1_sums, fc2_sums, scale, gamma, total1, total2, dbias1, dbias2
        blocks = dict(BLOCK_P=128, BLOCK_C=SUMMED)
        grid = (triton.cdiv(4 * C, SUMMED),)
        launch(sums_kernel, grid, *args, len(fc1_sums), len(fc2_sums), C=C, **blocks)
        known = fc1_weight, norm_weight, norm_bias, fc2_weight, fc2_bias, gamma
        args = product1, product2, total1, total2, scale, *known
        results = dfc1, dnorm_weight, dnorm_bias, dfc2, dgamma
        grid = (2 * triton.cdiv(C, UNFOLDED),)
        launch(unfold_kernel, grid, *args, *results, C=C, BLOCK_C=UNFOLDED, BLOCK_O=128)
        dx = normalize_backward(dx_hat, x_hat, rstd, dy, scale)
        return dx, *gradients, *[None] * 3


def _mlp(
    x_hat: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    fc2_bias: Tensor,
    gamma: Tensor,
    draw: Tensor | None,
) -> Tensor:
    """Compute what is added to the residual connection with PyTorch operators."""
    h = F.linear(x_hat * norm_weight + norm_bias, fc1_weight, fc1_bias)
    y = gamma * F.linear(F.gelu(h), fc2_weight, fc2_bias)
    return y if draw is None else draw[:, None, None] * y


def _cast(
    dy: Tensor, gamma: Tensor, draw: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dv and gamma / scale * dv (T, C) in ``dtype``, the scale (1,), and sums (P, C) of dv.

    The last two are float32.
    """
    B, N, C = dy.shape
    blocks = triton.cdiv(C, BLOCK_C)
    rows = _rows(N, blocks * B)
    programs = triton.cdiv(N, rows)
    dv, scaled = (dy.new_empty(B * N, C, dtype=dtype) for _ in range(2))
    scale = dy.new_empty(1, dtype=torch.float32)
    sums = dy.new_empty(B * programs, C, dtype=torch.float32)
    args = dy, gamma, draw, dv, scaled, scale, sums, N, rows
    block = dict(BLOCK_N=BLOCK_N, BLOCK_C=BLOCK_C, ALL_C=triton.next_power_of_2(C))
    launch(cast_kernel, (blocks * programs, B), *args, C=C, **block)
    return dv, scaled, scale, sums


def _gelu_backward_(dh: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply dh (T, C) by GELU'(h), and return GELU(h) and partial sums (P, C) of dh."""
    T, C = h.shape
    blocks = triton.cdiv(C, BLOCK_C)
    rows = _rows(T, blocks)
    programs = triton.cdiv(T, rows)
    values = torch.empty_like(h)
    sums = h.new_empty(programs, C, dtype=torch.float32)
    block = dict(BLOCK_N=BLOCK_N, BLOCK_C=BLOCK_C)
    grid = (blocks * programs,)
    launch(gelu_backward_kernel, grid, dh, h, values, sums, T, rows, C=C, **block)
    return values, sums


def _rows(tokens: int, others: int) -> int:
    """Return how many tokens a program handles if ``others`` programs handle the same tokens."""
    rows = triton.cdiv(tokens, max(1, PROGRAMS // max(1, others)))
    return BLOCK_N * max(1, triton.cdiv(rows, BLOCK_N))


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Return dy^T x in float32, for dy (T, C) and x (T, C')."""
    if dy.dtype == torch.float32 or not dy.is_cuda:
        return torch.mm(dy.t().float(), x.float())
    if not MM_HAS_OUT_DTYPE:
        return torch.mm(dy.t(), x).float()
    return torch.mm(dy.t(), x, out_dtype=torch.float32)
