"""MLP operator: two linear layers with GELU between them, without keeping the output of GELU.

Letters in shapes: n tokens of all images, C channels, F channels inside (4 C).
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .tracing import computed_dtype, is_captured, without_autocast

# Tokens whose inner values fit the cache of a CPU, so that their memory is reused. Larger blocks
# come from the system as new pages every time, which costs more than GELU itself.
CPU_CHUNK = 1024


def mlp(
    x: Tensor, fc1_weight: Tensor, fc1_bias: Tensor, fc2_weight: Tensor, fc2_bias: Tensor
) -> Tensor:
    """Return fc2(gelu(fc1(x))). The backward pass keeps x and the output of fc1, not that of GELU.

    Shape:
        x: (..., C); fc1_weight: (F, C); fc1_bias: (F,); fc2_weight: (C, F); fc2_bias: (C,).
        Output: (..., C).
    """
    if is_captured() or not torch.is_grad_enabled():
        gelu = F.gelu if is_captured() else gelu_
        return F.linear(gelu(F.linear(x, fc1_weight, fc1_bias)), fc2_weight, fc2_bias)
    dtype = computed_dtype(x)
    parameters = (t.to(dtype) for t in (fc1_weight, fc1_bias, fc2_weight, fc2_bias))
    with without_autocast(x):
        return _Mlp.apply(x.to(dtype).flatten(0, -2), *parameters).view(x.shape)


def gelu_(x: Tensor) -> Tensor:
    """Apply GELU in place, to a tensor that nothing else needs."""
    return torch.ops.aten.gelu_(x)


def token_chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Return views (n, C) of tokens (..., C): of a few each on a CPU, of all elsewhere."""
    x = x.flatten(0, -2)
    is_wide = computed_dtype(x) in (torch.float32, torch.float64)
    return x.split(CPU_CHUNK) if x.device.type == 'cpu' and is_wide and not is_captured() else (x,)


class _Mlp(Function):
    """The MLP of tokens (n, C), chunk by chunk; all tensors have the same dtype."""

    @staticmethod
    def forward(ctx, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = x.new_empty(x.shape[0], w1.shape[0])  # (n, F)
        y = torch.empty_like(x)
        for x_i, hidden_i, y_i in zip(*map(token_chunks, (x, hidden, y)), strict=True):
            torch.addmm(b1, x_i, w1.T, out=hidden_i)
            torch.addmm(b2, F.gelu(hidden_i), w2.T, out=y_i)
        ctx.save_for_backward(x, hidden, w1, w2)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, ...]:
        x, hidden, w1, w2 = ctx.saved_tensors
        needs_dx, needs_dw1, _, needs_dw2, _ = ctx.needs_input_grad
        dx = torch.empty_like(x)
        dw1, db1, dw2 = torch.zeros_like(w1), w1.new_zeros(w1.shape[0]), torch.zeros_like(w2)
        chunks = map(token_chunks, (x, hidden, dy, dx))
        for x_i, hidden_i, dy_i, dx_i in zip(*chunks, strict=True):
            if needs_dw2:
                dw2.addmm_(dy_i.T, F.gelu(hidden_i))
            dhidden = torch.ops.aten.gelu_backward(dy_i @ w2, hidden_i)
            if needs_dw1:
                dw1.addmm_(dhidden.T, x_i)
            if needs_dx:
                torch.mm(dhidden, w1, out=dx_i)
            db1 += dhidden.sum(0)
        return dx, dw1, db1, dw2, dy.sum(0)  # autograd ignores what does not need a gradient
