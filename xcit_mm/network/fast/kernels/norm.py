"""LayerNorm of tokens without its weight and bias, which the layer after it absorbs.

With the normalized tokens x_hat = (x - mean) / deviation over the channels, a linear layer after
LayerNorm is W (w x_hat + b_norm) + b = (W w) x_hat + (W b_norm + b). So the backward pass needs
only x_hat and 1 / deviation. With dW' and db the gradients of W w and of the whole bias,

    dW = dW' w + db b_norm^T,  dw = sum of dW' W over the outputs,  db_norm = W^T db.

Letters in shapes: B images, N tokens, C channels, P programs for each image.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import kernel, launch

PROGRAMS = 1056  # eight for each of the 132 multiprocessors of an H100
MIN_ROWS = 16  # tokens of a program, if the sums of programs are added up afterward
TILE = 2048  # values of a tile


@kernel
def normalize_kernel(
    x_ptr,
    x_hat_ptr,
    rstd_ptr,
    sums_ptr,
    N,
    rows,
    eps,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_SUMS: tl.constexpr,
):
    """Normalize ``rows`` tokens of an image, and add up the stored values."""
    program, image = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    n = tl.arange(0, BLOCK_N)
    at = n[:, None] * C + c[None]
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for first in range(0, rows, BLOCK_N):
        start = program * rows + first
        token = image.to(tl.int64) * N + start
        n_mask = n < N - start
        mask = n_mask[:, None] & (c < C)[None]
        x = tl.load(x_ptr + token * C + at, mask, other=0.0).to(tl.float32)
        x = tl.where(mask, x - (tl.sum(x, 1) / C)[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(x * x, 1) / C + eps)
        x_hat = (x * rstd[:, None]).to(x_hat_ptr.dtype.element_ty)
        tl.store(x_hat_ptr + token * C + at, x_hat, mask)
        tl.store(rstd_ptr + token + n, rstd, n_mask)
        if HAS_SUMS:
            total += x_hat.to(tl.float32)
    if HAS_SUMS:
        sums_ptr += (image * tl.num_programs(0) + program).to(tl.int64) * C
        tl.store(sums_ptr + c, tl.sum(total, 0), c < C)


@kernel
def normalize_backward_kernel(
    g_ptr,
    x_hat_ptr,
    rstd_ptr,
    scale_ptr,
    dy_ptr,
    dx_ptr,
    T,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Add the gradient that passes through the normalization to ``dy``."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_N
    t = tl.arange(0, BLOCK_N)
    c = tl.arange(0, BLOCK_C)
    t_mask = t < T - token
    mask = t_mask[:, None] & (c < C)[None]
    at = t[:, None] * C + c[None]
    base = token * C
    g = tl.load(g_ptr + base + at, mask, other=0.0).to(tl.float32)
    x_hat = tl.load(x_hat_ptr + base + at, mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + base + at, mask, other=0.0).to(tl.float32)
    factor = tl.load(rstd_ptr + token + t, t_mask, other=0.0)
    if HAS_SCALE:
        factor *= tl.load(scale_ptr)
    mean = tl.sum(g, 1) / C
    slope = tl.sum(g * x_hat, 1) / C
    dx = dy + factor[:, None] * (g - mean[:, None] - x_hat * slope[:, None])
    tl.store(dx_ptr + base + at, dx.to(dx_ptr.dtype.element_ty), mask)


def normalize(x: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the normalized tokens in ``dtype``, and 1 / deviation of each in float32.

    Shape:
        x: (B, N, C), contiguous. Output: (B, N, C) and (B, N).
    """
    B, N, C = x.shape
    block_n = tokens_in_tile(C)
    rows = block_n * max(1, triton.cdiv(B * N, block_n * 8 * PROGRAMS))
    x_hat, rstd, _ = _normalize(x.view(1, -1, C), eps, dtype, rows, has_sums=False)
    return x_hat.view(x.shape), rstd.view(B, N)


def normalize_with_sums(x: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`normalize` returns, and sums over the normalized tokens in float32.

    Each program adds up tokens of one image. The caller adds up the sums (B, P, C) of all programs.
    """
    B, N, _ = x.shape
    return _normalize(x, eps, dtype, rows_of_program(B, N), has_sums=True)


def rows_of_program(B: int, N: int) -> int:
    """Return how many tokens of an image a program adds up, so that all programs are busy."""
    rows = triton.cdiv(N * B, PROGRAMS)
    return MIN_ROWS * max(1, triton.cdiv(rows, MIN_ROWS))


def _normalize(
    x: Tensor, eps: float, dtype: torch.dtype, rows: int, has_sums: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    B, N, C = x.shape
    x_hat = torch.empty_like(x, dtype=dtype)
    rstd = x.new_empty((B, N), dtype=torch.float32)
    P = triton.cdiv(N, rows)
    sums = x.new_empty((B, P, C), dtype=torch.float32) if has_sums else None
    launch(
        normalize_kernel,
        (P, B),
        x,
        x_hat,
        rstd,
        sums,
        N,
        rows,
        eps,
        C=C,
        BLOCK_C=triton.next_power_of_2(C),
        BLOCK_N=tokens_in_tile(C),
        HAS_SUMS=has_sums,
    )
    return x_hat, rstd, sums


def normalize_backward(
    g: Tensor, x_hat: Tensor, rstd: Tensor, dy: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Return the gradient of x in the dtype of ``dy``.

    Args:
        g: Gradient of x_hat.
        x_hat: The normalized tokens.
        rstd: 1 / deviation of each token.
        dy: Gradient that reaches x through the residual connection, past the normalization.
        scale: A factor (1,) of ``g`` in float32, if 16 bits could not represent the product.

    Shape:
        (B, N, C), contiguous, and rstd (B, N). Output: (B, N, C).
    """
    C = g.shape[-1]
    T = g.numel() // C
    dx = torch.empty_like(dy)
    block_n = tokens_in_tile(C)
    launch(
        normalize_backward_kernel,
        (triton.cdiv(T, block_n),),
        g,
        x_hat,
        rstd,
        scale,
        dy,
        dx,
        T,
        C=C,
        BLOCK_C=triton.next_power_of_2(C),
        BLOCK_N=block_n,
        HAS_SCALE=scale is not None,
    )
    return dx


def tokens_in_tile(C: int) -> int:
    """Return how many tokens of C channels a program computes at a time."""
    return min(MIN_ROWS, max(1, TILE // triton.next_power_of_2(C)))
