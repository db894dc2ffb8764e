"""Cross-covariance attention in its Gram form, as a branch of a block and as an operator.

The attention is an affine map of the tokens that follows from their mean s and covariance G
(:func:`xcit_mm.network.ops.gram.affine_map`). Let W be the weight of a projection times the weight
of the LayerNorm before it, b the bias of the projection plus its weight times the LayerNorm's bias,
and x_hat the normalized tokens. The map of an image is

    mq = Wq s + bq, and mk likewise;                     the means of q and k
    sq = 1 / sqrt(diag(Wq G Wq^T) + mq^2), and sk;       sqrt(N) / their norms
    R = sq (Wq G Wk^T + mq mk^T) sk,  A = softmax(temperature R);      for each head
    M = Wp (A Wv),  m = Wp (A bv) + bp,  y = x_hat M^T + m.

Its gradient, with E = dy^T x_hat and e = sum of dy over the tokens, is

    dA = (Wp^T E) Wv^T + (Wp^T e) bv^T,  dR = temperature A (dA - sum_j dA A);
    dE = sq dR sk,  aq = -sq^2 sum_j dR R,  ak = -sk^2 sum_i dR R;
    D = [[aq, dE], [dE^T, ak]], the gradient of the second moments of (q, k);
    dmq = dE mk + aq mq, dmk = dE^T mq + ak mk;
    dWqk = D (Wqk G) + dm s^T,  dWv = A^T (Wp^T E),  dWp = (E Wv^T) A^T + e (A bv)^T;
    dx_hat = dy M + x_hat S + v,  S = Wqk^T D Wqk / N,  v = Wqk^T dm / N - S s.

Everything that does not grow with the number of tokens is computed in float32. Matrices that
multiply 16-bit tokens are rounded to 16 bits.

LayerScale may be as small as 1e-5; products with it could vanish in float16. The forward pass
multiplies by it last, in float32. The backward pass computes the gradient of x_hat in units of the
largest value of LayerScale.

Letters in shapes: B images, N tokens, C channels, h heads of d = C / h channels, P programs for
each image that add up tokens, S shares of the tokens.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from ...ops.gram import affine_map, map_tokens
from ...ops.moments import with_moments
from ..tracing import computed_dtype
from .differentiable import asks_for_second, branch_gradients, gradients
from .launch import kernel, launch
from .norm import normalize_backward, normalize_with_sums, rows_of_program, tokens_in_tile

EPS = tl.constexpr(1e-12)  # smallest norm by which a query or key is divided, as in F.normalize
PROGRAMS = 264  # two for each of the 132 multiprocessors of an H100
MIN_SHARE = 256  # tokens of a program that multiplies tokens by tokens
SMALL_TILE = 64  # rows and columns of a tile of products, if C is small or float32 is split
BLOCK = 64  # rows and columns of a tile of a small matrix
STRIP = 16  # rows of a tile of products that a program adds up
BLOCK_K = 32  # length of its products that are added up at a time


# Sums over the tokens.


@kernel
def cast_kernel(
    x_ptr,
    draw_ptr,
    out_ptr,
    sums_ptr,
    N,
    rows,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_DRAW: tl.constexpr,
    WRITES: tl.constexpr,
):
    """Multiply ``rows`` tokens by the factor of their image, round them, and add them up."""
    program, image = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    local = tl.arange(0, BLOCK_N)[:, None] * C + c[None]
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for first in range(0, rows, BLOCK_N):
        n = program * rows + first
        mask = (n + tl.arange(0, BLOCK_N) < N)[:, None] & (c < C)[None]
        base = (image.to(tl.int64) * N + n) * C
        x = tl.load(x_ptr + base + local, mask, other=0.0).to(tl.float32)
        if HAS_DRAW:
            x *= tl.load(draw_ptr + image)
        if WRITES:
            rounded = x.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + base + local, rounded, mask)
            x = rounded.to(tl.float32)
        total += x
    at = (image * tl.num_programs(0) + program).to(tl.int64) * C + c
    tl.store(sums_ptr + at, tl.sum(total, 0), c < C)


@triton.jit
def row_of_triangle(pair, n: tl.constexpr):
    """Return the row of the upper triangle of n x n tiles that holds tile number ``pair``."""
    row = 0
    for r in tl.static_range(1, n):
        row += tl.minimum(tl.maximum(pair - (r * n - r * (r - 1) // 2) + 1, 0), 1)
    return row


@triton.jit
def tile_at(
    pair, C: tl.constexpr, TILE: tl.constexpr, TILE_J: tl.constexpr, SYMMETRIC: tl.constexpr
):
    """Return the row and the column of a tile."""
    n: tl.constexpr = (C + TILE_J - 1) // TILE_J
    if SYMMETRIC:
        i = row_of_triangle(pair, n)
        j = pair - (i * n - i * (i - 1) // 2) + i
    else:
        i, j = pair // n, pair % n
    return i, j


@kernel
def products_kernel(
    a_ptr,
    z_ptr,
    sums_ptr,
    out_ptr,
    totals_ptr,
    N,
    share,
    P,
    rows,
    C: tl.constexpr,
    TILE: tl.constexpr,
    TILE_J: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    CENTERED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute a tile of a^T z over a share of the tokens, and add up its share of the sums of a.

    For a = z, only tiles of the upper triangle are computed. In float32, the mean of the first
    ``rows`` tokens is subtracted, because a large mean would cost digits of the covariance.
    """
    pair, part, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, j = tile_at(pair, C, TILE, TILE_J, SYMMETRIC)
    ci = i * TILE + tl.arange(0, TILE)
    cj = j * TILE_J + tl.arange(0, TILE_J)
    IS_EVEN: tl.constexpr = C % TILE == 0 and C % TILE_J == 0
    n = tl.arange(0, BLOCK_N)[:, None]
    sums_ptr += image.to(tl.int64) * P * C
    if CENTERED:
        first = tl.minimum(rows, N).to(tl.float32)
        center_i = (tl.load(sums_ptr + ci, ci < C, other=0.0) / first)[None]
        center_j = (tl.load(sums_ptr + cj, cj < C, other=0.0) / first)[None]
    acc = tl.zeros((TILE, TILE_J), tl.float32)
    end = tl.minimum(N, (part + 1) * share)
    for n0 in range(part * share, end, BLOCK_N):
        base = (image.to(tl.int64) * N + n0) * C
        mask_i = n < end - n0
        mask_j = mask_i
        if not IS_EVEN:
            mask_i = mask_i & (ci < C)[None]
            mask_j = mask_j & (cj < C)[None]
        a = tl.load(a_ptr + base + (n * C + ci[None]), mask_i, other=0.0)
        z = tl.load(z_ptr + base + (n * C + cj[None]), mask_j, other=0.0)
        if CENTERED:
            a = tl.where(mask_i, a - center_i, 0.0)
            z = tl.where(mask_j, z - center_j, 0.0)
        acc = tl.dot(tl.trans(a), z, acc, input_precision=PRECISION)
    at = ((part * tl.num_programs(2) + image) * tl.num_programs(0) + pair).to(tl.int64)
    tile = tl.arange(0, TILE)[:, None] * TILE_J + tl.arange(0, TILE_J)[None]
    tl.store(out_ptr + at * TILE * TILE_J + tile, acc)
    if j == (i if SYMMETRIC else 0):
        parts = tl.num_programs(1)
        last = ((part + 1) * P) // parts
        total = tl.zeros((BLOCK_P, TILE), tl.float32)
        for p0 in range((part * P) // parts, last, BLOCK_P):
            p = p0 + tl.arange(0, BLOCK_P)
            mask = (p < last)[:, None] & (ci < C)[None]
            total += tl.load(sums_ptr + p[:, None] * C + ci[None], mask, other=0.0)
        totals_ptr += (part * tl.num_programs(2) + image).to(tl.int64) * C
        tl.store(totals_ptr + ci, tl.sum(total, 0), ci < C)


@triton.jit
def total_of_shares(totals_ptr, image, images, c, parts, C: tl.constexpr):
    """Add up the sums of the shares of an image."""
    total = tl.zeros_like(c).to(tl.float32)
    for part in range(parts):
        at = (part * images + image).to(tl.int64) * C + c
        total += tl.load(totals_ptr + at, c < C, other=0.0)
    return total


@kernel
def moments_kernel(
    products_ptr,
    totals_ptr,
    sums_ptr,
    G_ptr,
    s_ptr,
    N,
    P,
    rows,
    parts,
    C: tl.constexpr,
    TILE: tl.constexpr,
    TILE_J: tl.constexpr,
    BLOCK: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    CENTERED: tl.constexpr,
):
    """Add up the products and sums of all shares and, for a = z, turn them into moments.

    A program computes ``BLOCK`` rows of a tile.
    """
    strip, pair, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    images = tl.num_programs(2)
    i, j = tile_at(pair, C, TILE, TILE_J, SYMMETRIC)
    row = strip * BLOCK + tl.arange(0, BLOCK)
    ci = i * TILE + row
    cj = j * TILE_J + tl.arange(0, TILE_J)
    tile = row[:, None] * TILE_J + tl.arange(0, TILE_J)[None]
    total = tl.zeros((BLOCK, TILE_J), tl.float32)
    for part in range(parts):
        at = ((part * images + image) * tl.num_programs(1) + pair).to(tl.int64)
        total += tl.load(products_ptr + at * TILE * TILE_J + tile)
    si = total_of_shares(totals_ptr, image, images, ci, parts, C)
    G_ptr += image.to(tl.int64) * C * C
    mask = (ci < C)[:, None] & (cj < C)[None]
    if SYMMETRIC:
        si /= N
        sj = total_of_shares(totals_ptr, image, images, cj, parts, C) / N
        shift_i, shift_j = si, sj
        if CENTERED:
            first = tl.minimum(rows, N).to(tl.float32)
            sums_ptr += image.to(tl.int64) * P * C
            shift_i -= tl.load(sums_ptr + ci, ci < C, other=0.0) / first
            shift_j -= tl.load(sums_ptr + cj, cj < C, other=0.0) / first
        total = total / N - shift_i[:, None] * shift_j[None]
        if i != j:
            tl.store(G_ptr + cj[:, None] * C + ci[None], tl.trans(total), tl.trans(mask))
    tl.store(G_ptr + ci[:, None] * C + cj[None], total, mask)
    if j == (i if SYMMETRIC else 0):
        tl.store(s_ptr + image.to(tl.int64) * C + ci, si, ci < C)


# Small matrices, in float32.


@triton.jit
def load_weight(W_ptr, norm_ptr, row, c, row_mask, C: tl.constexpr, HAS_NORM: tl.constexpr):
    """Load rows of a weight, times the weight of the LayerNorm."""
    mask = row_mask[:, None] & (c < C)[None]
    W = tl.load(W_ptr + row[:, None] * C + c[None], mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        W *= tl.load(norm_ptr + c, c < C, other=0.0).to(tl.float32)[None]
    return W


@triton.jit
def load_vector(ptr, c, mask, IS_THERE: tl.constexpr, OTHERWISE: tl.constexpr):
    """Load values of a vector as float32, or return a constant if there is no vector."""
    if IS_THERE:
        values = tl.load(ptr + c, mask, other=0.0).to(tl.float32)
    else:
        values = tl.zeros_like(c).to(tl.float32) + OTHERWISE
    return values


@triton.jit
def product(
    a_ptr,
    b_ptr,
    scale_ptr,
    vector_ptr,
    row,
    column,
    K: tl.constexpr,
    A_ROW: tl.constexpr,
    A_K: tl.constexpr,
    B_K: tl.constexpr,
    B_COLUMN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_VECTOR: tl.constexpr,
):
    """Return a tile of a diag(scale) b, and the same rows of a times a vector.

    A_ROW, A_K, B_K and B_COLUMN are the steps in memory to the next row, summand or column.
    """
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        a_mask = (row < ROWS)[:, None] & (k < K)[None]
        b_mask = (k < K)[:, None] & (column < COLUMNS)[None]
        a = tl.load(a_ptr + row[:, None] * A_ROW + k[None] * A_K, a_mask, other=0.0)
        b = tl.load(b_ptr + k[:, None] * B_K + column[None] * B_COLUMN, b_mask, other=0.0)
        a, b = a.to(tl.float32), b.to(tl.float32)
        if HAS_VECTOR:
            total += tl.sum(a * tl.load(vector_ptr + k, k < K, other=0.0)[None], 1)
        if HAS_SCALE:
            a *= tl.load(scale_ptr + k, k < K, other=0.0).to(tl.float32)[None]
        acc = tl.dot(a, b, acc, input_precision='tf32x3')
    return acc, total


@kernel
def weighted_covariance_kernel(
    W_ptr,
    norm_ptr,
    G_ptr,
    WG_ptr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Compute Wqk G."""
    image = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc, _ = product(
        W_ptr,
        G_ptr + image * C * C,
        norm_ptr,
        None,
        row,
        c,
        C,
        C,
        1,
        C,
        1,
        2 * C,
        C,
        BLOCK,
        BLOCK_K,
        HAS_NORM,
        False,
    )
    mask = (row < 2 * C)[:, None] & (c < C)[None]
    tl.store(WG_ptr + image * 2 * C * C + row[:, None] * C + c[None], acc, mask)


@kernel
def attention_kernel(
    WG_ptr,
    W_ptr,
    b_ptr,
    norm_ptr,
    norm_bias_ptr,
    s_ptr,
    temperature_ptr,
    mixed_ptr,
    abv_ptr,
    A_ptr,
    R_ptr,
    parts_ptr,
    N,
    C: tl.constexpr,
    d: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEPS: tl.constexpr,
):
    """Compute the attention of a head, and its products with the weight and bias of the values.

    The vectors that are kept are mq, mk, sq, sk and the bias of the values.
    """
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK_D)
    mask = i < d
    q, k, v = head * d + i, C + head * d + i, 2 * C + head * d + i
    WG_ptr += image * 2 * C * C
    cov = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    vq = tl.zeros((BLOCK_D,), tl.float32)
    vk = tl.zeros((BLOCK_D,), tl.float32)
    mq = load_vector(b_ptr, q, mask, HAS_BIAS, 0.0)
    mk = load_vector(b_ptr, k, mask, HAS_BIAS, 0.0)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        wq = load_weight(W_ptr, norm_ptr, q, c, mask, C, False)
        wk = load_weight(W_ptr, norm_ptr, k, c, mask, C, False)
        gq = load_weight(WG_ptr, norm_ptr, q, c, mask, C, HAS_NORM)
        gk = load_weight(WG_ptr, norm_ptr, k, c, mask, C, HAS_NORM)
        s = tl.load(s_ptr + image * C + c, c < C, other=0.0)
        if HAS_NORM:
            s *= tl.load(norm_ptr + c, c < C, other=0.0).to(tl.float32)
            s += tl.load(norm_bias_ptr + c, c < C, other=0.0).to(tl.float32)
        cov = tl.dot(gq, tl.trans(wk), cov, input_precision='tf32x3')
        vq += tl.sum(gq * wq, 1)
        vk += tl.sum(gk * wk, 1)
        mq += tl.sum(wq * s[None], 1)
        mk += tl.sum(wk * s[None], 1)
    sq = tl.rsqrt(tl.maximum(vq + mq * mq, EPS * EPS / N))
    sk = tl.rsqrt(tl.maximum(vk + mk * mk, EPS * EPS / N))
    R = cov * sq[:, None] * sk[None] + (mq * sq)[:, None] * (mk * sk)[None]
    logits = R * tl.load(temperature_ptr + head).to(tl.float32)
    logits = tl.where(mask[None], logits, float('-inf'))
    A = tl.exp(logits - tl.max(logits, 1)[:, None])
    pair = mask[:, None] & mask[None]
    A = tl.where(pair, A / tl.sum(A, 1)[:, None], 0.0)
    bv = load_vector(b_ptr, v, mask, HAS_BIAS, 0.0)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        wv = load_weight(W_ptr, norm_ptr, v, c, mask, C, False)
        if HAS_NORM:
            bv += tl.sum(wv * tl.load(norm_bias_ptr + c, c < C, other=0.0).to(tl.float32)[None], 1)
            wv *= tl.load(norm_ptr + c, c < C, other=0.0).to(tl.float32)[None]
        mixed = tl.dot(A, wv, input_precision='tf32x3')
        at = image * C * C + q[:, None] * C + c[None]
        tl.store(mixed_ptr + at, mixed, mask[:, None] & (c < C)[None])
    tl.store(abv_ptr + image * C + q, tl.sum(A * bv[None], 1), mask)
    if KEEPS:
        at = (image * tl.num_programs(0) + head) * d
        square = at * d + i[:, None] * d + i[None]
        tl.store(A_ptr + square, A, pair)
        tl.store(R_ptr + square, R, pair)
        parts_ptr += at * 5 + i
        tl.store(parts_ptr, mq, mask)
        tl.store(parts_ptr + d, mk, mask)
        tl.store(parts_ptr + 2 * d, sq, mask)
        tl.store(parts_ptr + 3 * d, sk, mask)
        tl.store(parts_ptr + 4 * d, bv, mask)


@kernel
def map_kernel(
    Wp_ptr,
    bp_ptr,
    gamma_ptr,
    mixed_ptr,
    abv_ptr,
    M_ptr,
    m_ptr,
    scaled_ptr,
    unit_ptr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Compute M and m, and for the backward pass M times LayerScale over its largest value."""
    image = tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc, total = product(
        Wp_ptr,
        mixed_ptr + image * C * C,
        None,
        abv_ptr + image * C,
        o,
        c,
        C,
        C,
        1,
        C,
        1,
        C,
        C,
        BLOCK,
        BLOCK_K,
        False,
        True,
    )
    mask = (o < C)[:, None] & (c < C)[None]
    at = image * C * C + o[:, None] * C + c[None]
    tl.store(M_ptr + at, acc.to(M_ptr.dtype.element_ty), mask)
    if tl.program_id(1) == 0:
        total += load_vector(bp_ptr, o, o < C, HAS_BIAS, 0.0)
        tl.store(m_ptr + image * C + o, total, o < C)
    if SCALES:
        every = tl.arange(0, BLOCK_C)
        gammas = tl.load(gamma_ptr + every, every < C, other=0.0).to(tl.float32)
        unit = tl.max(tl.abs(gammas), 0)
        unit = tl.where(unit > 0.0, unit, 1.0)
        if tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0:
            tl.store(unit_ptr, unit)
        gamma = tl.load(gamma_ptr + o, o < C, other=0.0).to(tl.float32)
        scaled = acc * (gamma / unit)[:, None]
        tl.store(scaled_ptr + at, scaled.to(M_ptr.dtype.element_ty), mask)


# The map of the tokens and its gradient.


@triton.jit
def add_product(
    acc,
    x_ptr,
    W_ptr,
    row,
    column,
    C: tl.constexpr,
    W_K: tl.constexpr,
    W_COLUMN: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the product of tokens, which start at ``x_ptr``, and a matrix."""
    for k0 in range(0, C, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x_at = x_ptr + row[:, None] * C + k[None]
        W_at = W_ptr + k[:, None] * W_K + column[None] * W_COLUMN
        if IS_EVEN:
            x, W = tl.load(x_at), tl.load(W_at)
        else:
            x = tl.load(x_at, (row >= 0)[:, None] & (k < C)[None], other=0.0)
            W = tl.load(W_at, (k < C)[:, None] & (column < C)[None], other=0.0)
        acc = tl.dot(x, W, acc, input_precision=PRECISION)
    return acc


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the left and the right columns of a tile; a thread holds some of both."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def store_mapped(
    acc,
    m_ptr,
    gamma_ptr,
    draw,
    x_ptr,
    out_ptr,
    o,
    tokens,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
):
    """Store columns ``o`` of the mapped tokens; in a branch, scaled and added to x."""
    n = tl.arange(0, BLOCK_N)
    mask = (n < tokens)[:, None] & (o < C)[None]
    at = n[:, None] * C + o[None]
    acc += tl.load(m_ptr + o, o < C, other=0.0)[None]
    if HAS_GAMMA:
        scale = draw * tl.load(gamma_ptr + o, o < C, other=0.0).to(tl.float32)
        acc = tl.load(x_ptr + at, mask, other=0.0).to(tl.float32) + acc * scale[None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask)


@kernel
def map_tokens_kernel(
    x_hat_ptr,
    M_ptr,
    m_ptr,
    gamma_ptr,
    draw_ptr,
    x_ptr,
    out_ptr,
    N,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    HAS_DRAW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute x_hat M^T + m; in a branch, scale it and add it to x."""
    image = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BLOCK_N
    column = tl.program_id(0) * BLOCK_C
    tokens = N - first
    # Rows behind the last token are computed from the last token, so that no load needs a mask.
    row = tl.minimum(tl.arange(0, BLOCK_N), tokens - 1)
    acc = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    acc = add_product(
        acc,
        x_hat_ptr + (image * N + first) * C,
        M_ptr + image * C * C,
        row,
        column + tl.arange(0, BLOCK_C),
        C,
        1,
        C,
        BLOCK_K,
        C % BLOCK_K == 0 and C % BLOCK_C == 0,
        PRECISION,
    )
    m_ptr += image * C
    out_ptr += (image * N + first) * C
    draw = 1.0
    if HAS_GAMMA:
        x_ptr += (image * N + first) * C
    if HAS_DRAW:
        draw = tl.load(draw_ptr + image)
    if BLOCK_C > 64:
        # All columns of x at once would take so many registers that only one program could run.
        Q: tl.constexpr = BLOCK_C // 4
        o = column + tl.arange(0, Q)
        left, right = halves(acc, BLOCK_N, BLOCK_C)
        a, b = halves(left, BLOCK_N, 2 * Q)
        c, d = halves(right, BLOCK_N, 2 * Q)
        store_mapped(a, m_ptr, gamma_ptr, draw, x_ptr, out_ptr, o, tokens, C, BLOCK_N, HAS_GAMMA)
        store_mapped(
            b, m_ptr, gamma_ptr, draw, x_ptr, out_ptr, o + Q, tokens, C, BLOCK_N, HAS_GAMMA
        )
        store_mapped(
            c, m_ptr, gamma_ptr, draw, x_ptr, out_ptr, o + 2 * Q, tokens, C, BLOCK_N, HAS_GAMMA
        )
        store_mapped(
            d, m_ptr, gamma_ptr, draw, x_ptr, out_ptr, o + 3 * Q, tokens, C, BLOCK_N, HAS_GAMMA
        )
    else:
        o = column + tl.arange(0, BLOCK_C)
        store_mapped(acc, m_ptr, gamma_ptr, draw, x_ptr, out_ptr, o, tokens, C, BLOCK_N, HAS_GAMMA)


@kernel
def token_gradient_kernel(
    dy_ptr,
    M_ptr,
    x_hat_ptr,
    S_ptr,
    v_ptr,
    out_ptr,
    N,
    terms,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dy M + x_hat S + v, where v is the sum of ``terms`` vectors."""
    image = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * BLOCK_N
    n = tl.arange(0, BLOCK_N)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.minimum(n, N - 1 - first)
    base = (image * N + first) * C
    IS_EVEN: tl.constexpr = C % BLOCK_K == 0 and C % BLOCK_C == 0
    M_ptr += image * C * C
    S_ptr += image * C * C
    acc = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    acc = add_product(acc, dy_ptr + base, M_ptr, row, c, C, C, 1, BLOCK_K, IS_EVEN, PRECISION)
    acc = add_product(acc, x_hat_ptr + base, S_ptr, row, c, C, C, 1, BLOCK_K, IS_EVEN, PRECISION)
    v_ptr += image * terms * C
    v = tl.zeros((BLOCK_C,), tl.float32)
    for term in range(terms):
        v += tl.load(v_ptr + term * C + c, c < C, other=0.0)
    acc += v[None]
    mask = (n < N - first)[:, None] & (c < C)[None]
    tl.store(out_ptr + base + (n[:, None] * C + c[None]), acc.to(out_ptr.dtype.element_ty), mask)


# Gradients of small matrices.


@kernel
def projected_kernel(
    E_ptr,
    W_ptr,
    norm_ptr,
    Wp_ptr,
    gamma_ptr,
    EWv_ptr,
    WpE_ptr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
):
    """Compute E Wv^T, and Wp^T E with LayerScale."""
    which, image = tl.program_id(2) % 2, (tl.program_id(2) // 2).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < C)[:, None] & (column < C)[None]
    at = image * C * C + row[:, None] * C + column[None]
    E_ptr += image * C * C
    if which == 0:
        acc, _ = product(
            E_ptr,
            W_ptr + 2 * C * C,
            norm_ptr,
            None,
            row,
            column,
            C,
            C,
            1,
            1,
            C,
            C,
            C,
            BLOCK,
            BLOCK_K,
            HAS_NORM,
            False,
        )
        tl.store(EWv_ptr + at, acc, mask)
    else:
        acc, _ = product(
            Wp_ptr,
            E_ptr,
            gamma_ptr,
            None,
            row,
            column,
            C,
            1,
            C,
            C,
            1,
            C,
            C,
            BLOCK,
            BLOCK_K,
            HAS_GAMMA,
            False,
        )
        tl.store(WpE_ptr + at, acc, mask)


@kernel
def attention_backward_kernel(
    EWv_ptr,
    e_ptr,
    W_ptr,
    norm_ptr,
    Wp_ptr,
    gamma_ptr,
    temperature_ptr,
    A_ptr,
    R_ptr,
    parts_ptr,
    X_ptr,
    dE_ptr,
    diagonal_ptr,
    dm_ptr,
    dtemperature_ptr,
    C: tl.constexpr,
    d: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
):
    """Compute the gradients dE, aq, ak, dmq, dmk and dbv of a head, and D Wqk."""
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(0)
    i = tl.arange(0, BLOCK_D)
    mask = i < d
    pair = mask[:, None] & mask[None]
    q, k = head * d + i, C + head * d + i
    at = (image * heads + head) * d
    square = at * d + i[:, None] * d + i[None]
    parts_ptr += at * 5 + i
    bv = tl.load(parts_ptr + 4 * d, mask, other=0.0)
    dA = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    dabv = tl.zeros((BLOCK_D,), tl.float32)
    for o0 in range(0, C, BLOCK_C):
        o = o0 + tl.arange(0, BLOCK_C)
        o_mask = (o < C)[:, None] & mask[None]
        wp = tl.load(Wp_ptr + o[:, None] * C + q[None], o_mask, other=0.0).to(tl.float32)
        if HAS_GAMMA:
            wp *= tl.load(gamma_ptr + o, o < C, other=0.0).to(tl.float32)[:, None]
        ewv = tl.load(EWv_ptr + image * C * C + o[:, None] * C + q[None], o_mask, other=0.0)
        e = tl.load(e_ptr + image * C + o, o < C, other=0.0)
        dA = tl.dot(tl.trans(wp), ewv, dA, input_precision='tf32x3')
        dabv += tl.sum(wp * e[:, None], 0)
    A = tl.load(A_ptr + square, pair, other=0.0)
    R = tl.load(R_ptr + square, pair, other=0.0)
    mq = tl.load(parts_ptr, mask, other=0.0)
    mk = tl.load(parts_ptr + d, mask, other=0.0)
    sq = tl.load(parts_ptr + 2 * d, mask, other=0.0)
    sk = tl.load(parts_ptr + 3 * d, mask, other=0.0)
    dA += dabv[:, None] * bv[None]
    dL = A * (dA - tl.sum(dA * A, 1)[:, None])
    tl.store(dtemperature_ptr + image * heads + head, tl.sum(tl.sum(dL * R, 1), 0))
    dR = dL * tl.load(temperature_ptr + head).to(tl.float32)
    dE = dR * sq[:, None] * sk[None]
    aq = -sq * sq * tl.sum(dR * R, 1)
    ak = -sk * sk * tl.sum(dR * R, 0)
    dmq = tl.sum(dE * mk[None], 1) + aq * mq
    dmk = tl.sum(dE * mq[:, None], 0) + ak * mk
    tl.store(dE_ptr + square, dE, pair)
    diagonal_ptr += at * 2 + i
    tl.store(diagonal_ptr, aq, mask)
    tl.store(diagonal_ptr + d, ak, mask)
    dm_ptr += image * 3 * C
    tl.store(dm_ptr + q, dmq, mask)
    tl.store(dm_ptr + k, dmk, mask)
    tl.store(dm_ptr + C + k, tl.sum(A * dabv[:, None], 0), mask)
    X_ptr += image * 2 * C * C
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        wq = load_weight(W_ptr, norm_ptr, q, c, mask, C, HAS_NORM)
        wk = load_weight(W_ptr, norm_ptr, k, c, mask, C, HAS_NORM)
        xq = aq[:, None] * wq + tl.dot(dE, wk, input_precision='tf32x3')
        xk = ak[:, None] * wk + tl.dot(tl.trans(dE), wq, input_precision='tf32x3')
        c_mask = mask[:, None] & (c < C)[None]
        tl.store(X_ptr + q[:, None] * C + c[None], xq, c_mask)
        tl.store(X_ptr + k[:, None] * C + c[None], xk, c_mask)


@kernel
def slope_kernel(
    W_ptr,
    norm_ptr,
    X_ptr,
    dm_ptr,
    s_ptr,
    unit_ptr,
    S_ptr,
    v_ptr,
    N,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
):
    """Compute S, and the terms of v: one for each row of tiles, and Wqk^T dm / N.

    v is computed with the rounded S, because the tokens are multiplied by it, too.
    """
    image = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc, total = product(
        W_ptr,
        X_ptr + image * 2 * C * C,
        None,
        dm_ptr + image * 3 * C,
        k,
        c,
        2 * C,
        1,
        C,
        C,
        1,
        C,
        C,
        BLOCK,
        BLOCK_K,
        False,
        True,
    )
    scale = load_vector(norm_ptr, k, k < C, HAS_NORM, 1.0) / N
    if HAS_GAMMA:
        scale /= tl.load(unit_ptr)
    S = (acc * scale[:, None]).to(S_ptr.dtype.element_ty)
    mask = (k < C)[:, None] & (c < C)[None]
    tl.store(S_ptr + image * C * C + k[:, None] * C + c[None], S, mask)
    s = tl.load(s_ptr + image * C + k, k < C, other=0.0)
    tiles = tl.num_programs(0)
    v_ptr += image * (tiles + 1) * C
    term = -tl.sum(tl.where(mask, S.to(tl.float32), 0.0) * s[:, None], 0)
    tl.store(v_ptr + tl.program_id(0) * C + c, term, c < C)
    if tl.program_id(1) == 0:
        tl.store(v_ptr + tiles * C + k, total * scale, k < C)


@kernel
def weight_gradient_kernel(
    WG_ptr,
    WpE_ptr,
    EWv_ptr,
    A_ptr,
    dE_ptr,
    diagonal_ptr,
    dm_ptr,
    s_ptr,
    e_ptr,
    abv_ptr,
    W_ptr,
    norm_ptr,
    norm_bias_ptr,
    Wp_ptr,
    gamma_ptr,
    dW_ptr,
    db_ptr,
    dWp_ptr,
    unfolded_ptr,
    B,
    C: tl.constexpr,
    d: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Add up the gradients of a head's rows of Wq, Wk or Wv, or columns of Wp, over the images.

    Also add up, over these rows, the terms of the gradients of LayerNorm and LayerScale.
    """
    head, role = tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    i = tl.arange(0, BLOCK_D)
    mask = i < d
    pair = mask[:, None] & mask[None]
    c_mask = mask[:, None] & (c < C)[None]
    q = head * d + i
    local = i[:, None] * d + i[None]
    crossed = i[None] * d + i[:, None]
    acc = tl.zeros((BLOCK_D, BLOCK_C), tl.float32)
    db = tl.zeros((BLOCK_D,), tl.float32)
    for b in range(B):
        image = tl.cast(b, tl.int64)
        at = (image * heads + head) * d
        if role < 2:
            # The other of q and k, whose rows are multiplied by dE or its transpose.
            here, other = role * C + q, (1 - role) * C + q
            WG = WG_ptr + image * 2 * C * C
            own = tl.load(WG + here[:, None] * C + c[None], c_mask, other=0.0)
            values = tl.load(WG + other[:, None] * C + c[None], c_mask, other=0.0)
            places = role * crossed + (1 - role) * local
            matrix = tl.load(dE_ptr + at * d + places, pair, other=0.0)
            diagonal = tl.load(diagonal_ptr + at * 2 + role * d + i, mask, other=0.0)
            acc += diagonal[:, None] * own
            rows = tl.load(dm_ptr + image * 3 * C + here, mask, other=0.0)
            columns = tl.load(s_ptr + image * C + c, c < C, other=0.0)
            acc += rows[:, None] * columns[None]
            db += rows
        elif role == 2:
            matrix = tl.load(A_ptr + at * d + crossed, pair, other=0.0)
            values = tl.load(WpE_ptr + image * C * C + q[:, None] * C + c[None], c_mask, other=0.0)
            db += tl.load(dm_ptr + image * 3 * C + 2 * C + q, mask, other=0.0)
        else:
            matrix = tl.load(A_ptr + at * d + local, pair, other=0.0)
            values = tl.load(EWv_ptr + image * C * C + c[None] * C + q[:, None], c_mask, other=0.0)
            rows = tl.load(abv_ptr + image * C + q, mask, other=0.0)
            columns = tl.load(e_ptr + image * C + c, c < C, other=0.0)
            acc += rows[:, None] * columns[None]
        acc = tl.dot(matrix, values, acc, input_precision='tf32x3')
    unfolded_ptr += (role * heads + head) * 2 * C + c
    if role < 3:
        row = role * C + q
        W = tl.load(W_ptr + row[:, None] * C + c[None], c_mask, other=0.0).to(tl.float32)
        if HAS_NORM:
            tl.store(unfolded_ptr, tl.sum(acc * W, 0), c < C)
            tl.store(unfolded_ptr + C, tl.sum(db[:, None] * W, 0), c < C)
            norm = tl.load(norm_ptr + c, c < C, other=0.0).to(tl.float32)
            norm_bias = tl.load(norm_bias_ptr + c, c < C, other=0.0).to(tl.float32)
            acc = acc * norm[None] + db[:, None] * norm_bias[None]
        dW = acc.to(dW_ptr.dtype.element_ty)
        tl.store(dW_ptr + row[:, None] * C + c[None], dW, c_mask)
        if HAS_BIAS and tl.program_id(0) == 0:
            tl.store(db_ptr + row, db.to(db_ptr.dtype.element_ty), mask)
    else:
        if HAS_GAMMA:
            Wp = tl.load(Wp_ptr + c[None] * C + q[:, None], c_mask, other=0.0).to(tl.float32)
            tl.store(unfolded_ptr, tl.sum(acc * Wp, 0), c < C)
            acc *= tl.load(gamma_ptr + c, c < C, other=0.0).to(tl.float32)[None]
        dWp = acc.to(dWp_ptr.dtype.element_ty)
        tl.store(dWp_ptr + c[None] * C + q[:, None], dWp, c_mask)


@kernel
def vector_gradient_kernel(
    unfolded_ptr,
    e_ptr,
    bp_ptr,
    gamma_ptr,
    dtemperatures_ptr,
    dnorm_ptr,
    dnorm_bias_ptr,
    dbp_ptr,
    dgamma_ptr,
    dtemperature_ptr,
    B,
    C: tl.constexpr,
    heads: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Add up the gradients of vectors: over heads for LayerNorm and LayerScale, and over images."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = c < C
    if HAS_NORM:
        dnorm = tl.zeros((BLOCK,), tl.float32)
        dnorm_bias = tl.zeros((BLOCK,), tl.float32)
        for part in range(3 * heads):
            dnorm += tl.load(unfolded_ptr + part * 2 * C + c, mask, other=0.0)
            dnorm_bias += tl.load(unfolded_ptr + (part * 2 + 1) * C + c, mask, other=0.0)
        tl.store(dnorm_ptr + c, dnorm.to(dnorm_ptr.dtype.element_ty), mask)
        tl.store(dnorm_bias_ptr + c, dnorm_bias.to(dnorm_bias_ptr.dtype.element_ty), mask)
    e = tl.zeros((BLOCK,), tl.float32)
    for b in range(B):
        e += tl.load(e_ptr + b * C + c, mask, other=0.0)
    if HAS_GAMMA:
        dgamma = e * load_vector(bp_ptr, c, mask, HAS_BIAS, 0.0)
        for head in range(heads):
            dgamma += tl.load(unfolded_ptr + (3 * heads + head) * 2 * C + c, mask, other=0.0)
        tl.store(dgamma_ptr + c, dgamma.to(dgamma_ptr.dtype.element_ty), mask)
        e *= tl.load(gamma_ptr + c, mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        tl.store(dbp_ptr + c, e.to(dbp_ptr.dtype.element_ty), mask)
    if tl.program_id(0) == 0:
        every = tl.arange(0, BLOCK_H)
        total = tl.zeros((BLOCK_H,), tl.float32)
        for b in range(B):
            total += tl.load(dtemperatures_ptr + b * heads + every, every < heads, other=0.0)
        dtemperature = total.to(dtemperature_ptr.dtype.element_ty)
        tl.store(dtemperature_ptr + every, dtemperature, every < heads)


# What launches them.


class Weights(NamedTuple):
    """The parameters, and the factor of each image. The operator does not have the last four."""

    qkv: Tensor
    qkv_bias: Tensor | None
    temperature: Tensor
    proj: Tensor
    proj_bias: Tensor | None
    norm: Tensor | None = None
    norm_bias: Tensor | None = None
    gamma: Tensor | None = None
    draw: Tensor | None = None

    def flags(self) -> dict[str, bool]:
        """Return which parameters there are, by the names of the kernels' constants."""
        return {'HAS_NORM': self.norm is not None, 'HAS_GAMMA': self.gamma is not None}


def attention_branch(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    gamma: Tensor,
    draw: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x + draw * gamma * XCA(LayerNorm(x)) in the dtype of x.

    Args:
        x: Tokens.
        norm_weight: Weight of the LayerNorm.
        norm_bias: Bias of the LayerNorm.
        eps: What LayerNorm adds to the variance.
        qkv_weight: Weight of the projection to q, k and v.
        qkv_bias: Bias of this projection, or None.
        temperature: Factor of each head.
        proj_weight: Weight of the output projection.
        proj_bias: Bias of the output projection, or None.
        gamma: LayerScale, a factor of each channel.
        draw: A factor of each image in float32 (stochastic depth), or None.
        dtype: The dtype in which tokens are multiplied. Default: that of x.

    Shape:
        x: (B, N, C); norm_weight, norm_bias, proj_bias, gamma: (C,); qkv_weight: (3 C, C);
        qkv_bias: (3 C,); temperature: (h, 1, 1); proj_weight: (C, C); draw: (B,).
        Output: (B, N, C).
    """
    weights = Weights(
        qkv_weight,
        qkv_bias,
        temperature,
        proj_weight,
        proj_bias,
        norm_weight,
        norm_bias,
        gamma,
        draw,
    )
    return _attention(x, eps, dtype or x.dtype, weights)


def cross_covariance_attention(
    x: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    temperature: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
) -> Tensor:
    """Return XCA(x) for tokens (B, N, C), in the dtype in which autocast computes with them.

    See :func:`xcit_mm.network.ops.xca` for the arguments.
    """
    weights = Weights(qkv_weight, qkv_bias, temperature, proj_weight, proj_bias)
    x = x.to(computed_dtype(x))
    return _attention(x, 0.0, x.dtype, weights)


def _attention(x: Tensor, eps: float, dtype: torch.dtype, weights: Weights) -> Tensor:
    x = x.contiguous()
    weights = Weights(*(w if w is None else w.contiguous() for w in weights))
    needs_gradients = any(t is not None and t.requires_grad for t in (x, *weights))
    if torch.is_grad_enabled() and needs_gradients:
        return _Attention.apply(x, eps, dtype, *weights)[0]
    return _forward(x, eps, dtype, weights, keeps=False)[0]


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, eps: float, dtype: torch.dtype, *weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the output and, for second derivatives of a branch, x_hat and 1 / deviation."""
        out, kept = _forward(x, eps, dtype, Weights(*weights), keeps=True)
        ctx.save_for_backward(*weights, *kept)
        ctx.set_materialize_grads(kept.rstd is None)
        return (out,) if kept.rstd is None else (out, kept.x_hat, kept.rstd)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *of_norm: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, number = ctx.saved_tensors, len(Weights._fields)  # a checkpoint unpacks them once
        weights, kept = Weights(*tensors[:number]), Kept(*tensors[number:])
        if asks_for_second(dy, *of_norm):
            if kept.rstd is None:
                dx, *of_weights = gradients(_attended, (kept.x_hat, *weights), dy)
            else:
                normalized = kept.x_hat, kept.rstd
                dx, of_weights = branch_gradients(_attended, *normalized, weights, dy, *of_norm)
        else:
            needs_x, needs_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3:])
            dx, of_weights = _backward(dy.contiguous(), weights, kept, needs_x, needs_weights)
        return dx, None, None, *of_weights


def _attended(x: Tensor, *weights: Tensor | None) -> Tensor:
    """Compute what is added to the residual connection with PyTorch operators."""
    *parameters, norm, norm_bias, gamma, draw = weights
    if norm is not None:
        x = x * norm + norm_bias
    tokens, G, s = with_moments(x)
    y = map_tokens(tokens, *affine_map(G, s, x.shape[1], *parameters))
    y = y if gamma is None else gamma * y
    return y if draw is None else draw[:, None, None] * y


class Kept(NamedTuple):
    """What the backward pass needs besides the weights: the tokens, and small matrices."""

    x_hat: Tensor  # (B, N, C)
    rstd: Tensor | None  # (B, N)
    s: Tensor  # (B, C)
    WG: Tensor  # (B, 2 C, C)
    A: Tensor  # (B, h, d, d)
    R: Tensor  # (B, h, d, d)
    parts: Tensor  # (B, h, 5, d)
    abv: Tensor  # (B, C)
    M: Tensor  # (B, C, C), with LayerScale in units of its largest value
    unit: Tensor | None  # this value, (1,)


def _forward(
    x: Tensor, eps: float, dtype: torch.dtype, weights: Weights, keeps: bool
) -> tuple[Tensor, Kept | None]:
    B, N, C = x.shape
    h = weights.temperature.numel()
    empty = x.new_empty
    is_branch = weights.norm is not None
    if is_branch:
        x_hat, rstd, sums = normalize_with_sums(x, eps, dtype)
    else:
        (x_hat, sums), rstd = _cast(x, None, dtype), None
    G, s = _products(x_hat, x_hat, sums)

    tiles = triton.cdiv(C, BLOCK)
    flags = weights.flags()
    WG = empty((B, 2 * C, C), dtype=torch.float32)
    launch(
        weighted_covariance_kernel,
        (triton.cdiv(2 * C, BLOCK), tiles, B),
        weights.qkv,
        weights.norm,
        G,
        WG,
        C=C,
        BLOCK=BLOCK,
        BLOCK_K=BLOCK_K,
        HAS_NORM=is_branch,
    )
    mixed, abv = G, torch.empty_like(s)  # G is not needed any more
    A = R = parts = None
    if keeps:
        A, R = (empty((B, h, C // h, C // h), dtype=torch.float32) for _ in range(2))
        parts = empty((B, h, 5, C // h), dtype=torch.float32)
    launch(
        attention_kernel,
        (h, B),
        WG,
        weights.qkv,
        weights.qkv_bias,
        weights.norm,
        weights.norm_bias,
        s,
        weights.temperature,
        mixed,
        abv,
        A,
        R,
        parts,
        N,
        C=C,
        d=C // h,
        BLOCK_D=_block_of_head(C // h),
        BLOCK_C=BLOCK_K,
        HAS_NORM=is_branch,
        HAS_BIAS=weights.qkv_bias is not None,
        KEEPS=keeps,
        num_warps=8,
    )
    M, m = empty((B, C, C), dtype=dtype), torch.empty_like(abv)
    scales = keeps and is_branch
    scaled = torch.empty_like(M) if scales else None
    unit = empty(1, dtype=torch.float32) if scales else None
    launch(
        map_kernel,
        (tiles, tiles, B),
        weights.proj,
        weights.proj_bias,
        weights.gamma,
        mixed,
        abv,
        M,
        m,
        scaled,
        unit,
        C=C,
        BLOCK=BLOCK,
        BLOCK_K=BLOCK_K,
        BLOCK_C=triton.next_power_of_2(C),
        HAS_BIAS=weights.proj_bias is not None,
        SCALES=scales,
    )
    out = torch.empty_like(x)
    grid, options = _tiles_of_tokens(x_hat)
    launch(
        map_tokens_kernel,
        grid,
        x_hat,
        M,
        m,
        weights.gamma,
        weights.draw,
        x,
        out,
        N,
        HAS_GAMMA=flags['HAS_GAMMA'],
        HAS_DRAW=weights.draw is not None,
        **options,
    )
    if not keeps:
        return out, None
    return out, Kept(x_hat, rstd, s, WG, A, R, parts, abv, scaled if scales else M, unit)


def _backward(
    dy: Tensor, weights: Weights, kept: Kept, needs_x: bool, needs_weights: bool
) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    x_hat = kept.x_hat
    B, _, C = x_hat.shape
    h = weights.temperature.numel()
    flags = weights.flags()
    tiles = triton.cdiv(C, BLOCK)

    cast, sums = _cast(dy, weights.draw, x_hat.dtype)
    E, e = _products(cast, x_hat, sums)
    EWv, WpE = torch.empty_like(E), torch.empty_like(E)
    launch(
        projected_kernel,
        (tiles, tiles, 2 * B),
        E,
        weights.qkv,
        weights.norm,
        weights.proj,
        weights.gamma,
        EWv,
        WpE,
        C=C,
        BLOCK=BLOCK,
        BLOCK_K=BLOCK_K,
        **flags,
    )
    X, dE = torch.empty_like(kept.WG), torch.empty_like(kept.A)
    diagonal = e.new_empty(B, h, 2, C // h)
    dm = e.new_empty(B, 3, C)
    dtemperatures = e.new_empty(B, h)
    launch(
        attention_backward_kernel,
        (h, B),
        EWv,
        e,
        weights.qkv,
        weights.norm,
        weights.proj,
        weights.gamma,
        weights.temperature,
        kept.A,
        kept.R,
        kept.parts,
        X,
        dE,
        diagonal,
        dm,
        dtemperatures,
        C=C,
        d=C // h,
        BLOCK_D=_block_of_head(C // h),
        BLOCK_C=BLOCK_K,
        num_warps=8,
        **flags,
    )
    dx = _token_gradient(dy, cast, X, dm, weights, kept) if needs_x else None
    if not needs_weights:
        return dx, (None,) * len(weights)

    gradients = Weights(*(w if w is None else torch.empty_like(w) for w in weights))
    unfolded = e.new_empty(4, h, 2, C)
    launch(
        weight_gradient_kernel,
        (tiles, h, 4),
        kept.WG,
        WpE,
        EWv,
        kept.A,
        dE,
        diagonal,
        dm,
        kept.s,
        e,
        kept.abv,
        weights.qkv,
        weights.norm,
        weights.norm_bias,
        weights.proj,
        weights.gamma,
        gradients.qkv,
        gradients.qkv_bias,
        gradients.proj,
        unfolded,
        B,
        C=C,
        d=C // h,
        BLOCK_D=_block_of_head(C // h),
        BLOCK_C=BLOCK,
        HAS_BIAS=weights.qkv_bias is not None,
        num_warps=8,
        **flags,
    )
    launch(
        vector_gradient_kernel,
        (tiles,),
        unfolded,
        e,
        weights.proj_bias,
        weights.gamma,
        dtemperatures,
        gradients.norm,
        gradients.norm_bias,
        gradients.proj_bias,
        gradients.gamma,
        gradients.temperature,
        B,
        C=C,
        heads=h,
        BLOCK=BLOCK,
        BLOCK_H=triton.next_power_of_2(h),
        HAS_BIAS=weights.proj_bias is not None,
        **flags,
    )
    return dx, gradients._replace(draw=None)


def _token_gradient(
    dy: Tensor, cast: Tensor, X: Tensor, dm: Tensor, weights: Weights, kept: Kept
) -> Tensor:
    """Return the gradient of the tokens. ``cast`` is dy times the factors of images, rounded."""
    x_hat = kept.x_hat
    B, N, C = x_hat.shape
    tiles = triton.cdiv(C, BLOCK)
    S, v = torch.empty_like(kept.M), dm.new_empty(B, tiles + 1, C)
    launch(
        slope_kernel,
        (tiles, tiles, B),
        weights.qkv,
        weights.norm,
        X,
        dm,
        kept.s,
        kept.unit,
        S,
        v,
        N,
        C=C,
        BLOCK=BLOCK,
        BLOCK_K=BLOCK_K,
        **weights.flags(),
    )
    g = torch.empty_like(x_hat)
    grid, options = _tiles_of_tokens(x_hat)
    launch(token_gradient_kernel, grid, cast, kept.M, x_hat, S, v, g, N, tiles + 1, **options)
    if kept.rstd is None:
        return g
    return normalize_backward(g, x_hat, kept.rstd, dy, kept.unit)


def _cast(x: Tensor, draw: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return draw * x in ``dtype``, and its sums (B, P, C) over the tokens of each program."""
    B, N, C = x.shape
    writes = draw is not None or dtype != x.dtype
    out = torch.empty_like(x, dtype=dtype) if writes else x
    rows = rows_of_program(B, N)
    P = triton.cdiv(N, rows)
    sums = x.new_empty((B, P, C), dtype=torch.float32)
    launch(
        cast_kernel,
        (P, B),
        x,
        draw,
        out,
        sums,
        N,
        rows,
        C=C,
        BLOCK_C=triton.next_power_of_2(C),
        BLOCK_N=tokens_in_tile(C),
        HAS_DRAW=draw is not None,
        WRITES=writes,
    )
    return out, sums


def _products(a: Tensor, z: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over the tokens of a^T z (B, C, C) and a (B, C) in float32.

    For a = z, return the covariance and the mean. ``sums`` (B, P, C) are the partial sums of a.
    """
    B, N, C = z.shape
    is_symmetric = a is z
    is_wide = z.dtype == torch.float32
    TILE = SMALL_TILE if C <= 192 or is_wide else 128
    TILE_J = 256 if TILE == 128 and C % 256 == 0 and not is_symmetric else TILE
    columns = triton.cdiv(C, TILE_J)
    pairs = columns * (columns + 1) // 2 if is_symmetric else triton.cdiv(C, TILE) * columns
    block_n = 32 if is_wide else 64
    parts = max(1, min(triton.cdiv(N, MIN_SHARE), PROGRAMS // max(1, pairs * B)))
    share = block_n * triton.cdiv(N, parts * block_n)
    parts = triton.cdiv(N, share)
    new = lambda *size: z.new_empty(size, dtype=torch.float32)  # noqa: E731
    products, totals = new(parts, B, pairs, TILE, TILE_J), new(parts, B, C)
    P, rows = sums.shape[1], rows_of_program(B, N)
    constants = {'C': C, 'TILE': TILE, 'TILE_J': TILE_J, 'SYMMETRIC': is_symmetric}
    constants['CENTERED'] = is_symmetric and is_wide
    launch(
        products_kernel,
        (pairs, parts, B),
        a,
        z,
        sums,
        products,
        totals,
        N,
        share,
        P,
        rows,
        BLOCK_N=block_n,
        BLOCK_P=16,
        PRECISION=_precision(z),
        num_warps=8 if TILE == 128 else 4,
        num_stages=3,
        **constants,
    )
    G, s = new(B, C, C), new(B, C)
    launch(
        moments_kernel,
        (TILE // STRIP, pairs, B),
        products,
        totals,
        sums,
        G,
        s,
        N,
        P,
        rows,
        parts,
        BLOCK=STRIP,
        **constants,
    )
    return G, s


def _tiles_of_tokens(x: Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the grid and the constants of a product of tokens with matrices."""
    B, N, C = x.shape
    is_wide = x.dtype == torch.float32
    block_n = 64 if is_wide else 128
    block_c = 64 if is_wide or C % 128 else 128
    grid = triton.cdiv(C, block_c), triton.cdiv(N, block_n), B
    options = {
        'C': C,
        'BLOCK_N': block_n,
        'BLOCK_C': block_c,
        'BLOCK_K': 32 if is_wide else 64,
        'PRECISION': _precision(x),
        'num_warps': 4 if is_wide else 8,
        'num_stages': 3,
    }
    return grid, options


def _block_of_head(d: int) -> int:
    return max(16, triton.next_power_of_2(d))


def _precision(tokens: Tensor) -> str:
    """Return the precision of float32 products; 16-bit values are multiplied exactly anyway."""
    is_exact = tokens.dtype == torch.float32 and not _may_round()
    return 'tf32x3' if is_exact else 'tf32'


def _may_round() -> bool:
    """Return whether PyTorch multiplies matrices of float32 in TF32."""
    backend = torch.backends.cuda.matmul
    precision = getattr(backend, 'fp32_precision', None)  # PyTorch 2.9, where it may be 'none'
    return backend.allow_tf32 if precision in (None, 'none') else precision == 'tf32'
