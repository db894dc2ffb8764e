"""The two linear layers of a block with GELU between them, keeping no output of GELU.

Letters in shapes: n tokens of all images, C channels, F channels inside (4 C).
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .tracing import computed_dtype, is_captured, without_autocast

# On a CPU the F wide values of so many tokens stay in the cache, and their memory is used
# again instead of being asked from the system, which costs more than GELU (large blocks come
# as fresh pages every time).
CPU_CHUNK = 1024


def mlp(
    x: Tensor, fc1_weight: Tensor, fc1_bias: Tensor, fc2_weight: Tensor, fc2_bias: Tensor
) -> Tensor:
    """fc2(gelu(fc1(x))), which keeps for the backward pass x and the output of fc1.

    GELU's output, as large as fc1's, is computed anew in the backward pass.

    Shape:
        x: (..., C); fc1_weight: (F, C); fc1_bias: (F,); fc2_weight: (C, F); fc2_bias: (C,).
        Output: (..., C).
    """
    if is_captured():
        return _plain(x, fc1_weight, fc1_bias, fc2_weight, fc2_bias)
    if not torch.is_grad_enabled():
        return F.linear(gelu_(F.linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)
    dtype = computed_dtype(x)
    tensors = (t.to(dtype) for t in (fc1_weight, fc1_bias, fc2_weight, fc2_bias))
    with without_autocast(x):
        return _Mlp.apply(x.to(dtype).flatten(0, -2), *tensors).view(x.shape)


def gelu_(x: Tensor) -> Tensor:
    """GELU in place, where nobody else needs x: a large tensor less."""
    return torch.ops.aten.gelu_(x)


def token_chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Views of the tokens (..., C) in groups (n, C) to work on one after the other.

    On a CPU in float32 and float64, groups that fit its cache; elsewhere a single one.
    """
    x = x.flatten(0, -2)
    if is_captured() or x.device.type != 'cpu':
        return (x,)
    wide = computed_dtype(x) in (torch.float32, torch.float64)
    return x.split(CPU_CHUNK) if wide else (x,)


def _plain(
    x: Tensor, fc1_weight: Tensor, fc1_bias: Tensor, fc2_weight: Tensor, fc2_bias: Tensor
) -> Tensor:
    return F.linear(F.gelu(F.linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)


class _Mlp(Function):
    """``_plain`` for tokens (n, C), chunk by chunk, all tensors of one dtype."""

    @staticmethod
    def forward(ctx, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = x.new_empty(x.shape[0], w1.shape[0])
        y = torch.empty_like(x)
        for x_i, hidden_i, y_i in zip(*map(token_chunks, (x, hidden, y)), strict=True):
            torch.addmm(b1, x_i, w1.T, out=hidden_i)
            torch.addmm(b2, F.gelu(hidden_i), w2.T, out=y_i)
        ctx.save_for_backward(x, hidden, w1, w2)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, w1, w2 = ctx.saved_tensors
        needs_dx, needs_dw1, needs_db1, needs_dw2, needs_db2 = ctx.needs_input_grad
        dx = torch.empty_like(x)
        dw1, db1, dw2 = torch.zeros_like(w1), w1.new_zeros(w1.shape[0]), torch.zeros_like(w2)
        chunks = map(token_chunks, (x, hidden, dy, dx))
        for x_i, hidden_i, dy_i, dx_i in zip(*chunks, strict=True):
            if needs_dw2:
                dw2.addmm_(dy_i.T, F.gelu(hidden_i))
            dhidden = torch.ops.aten.gelu_backward(dy_i @ w2, hidden_i)
            if needs_dw1:
                dw1.addmm_(dhidden.T, x_i)
            if needs_db1:
                db1 += dhidden.sum(0)
            if needs_dx:
                torch.mm(dhidden, w1, out=dx_i)
        return (
            dx if needs_dx else None,
            dw1 if needs_dw1 else None,
            db1 if needs_db1 else None,
            dw2 if needs_dw2 else None,
            dy.sum(0) if needs_db2 else None,
        )
