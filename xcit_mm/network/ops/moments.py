"""Moments of tokens: their mean and covariance. The attention depends on nothing else in an image.

Letters in shapes: B images, N tokens, C channels.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from ...base.device import widest_dtype
from ..fast.tracing import is_traced, is_transformed

# On CUDA, products of 16-bit matrices can be returned in float32: PyTorch 2.8 and later.
BMM_HAS_OUT_DTYPE = 'dtype' in torch.ops.aten.bmm.overloads()
SAMPLED_TOKENS = 256
PART = 512  # 16-bit tokens whose sum of products is rounded to 16 bits
PARTS = 4  # that are centered at a time


def moments(x: Tensor, in_parts: bool = False) -> tuple[Tensor, Tensor]:
    """Return the covariance over the tokens, in at least float32, and the mean of x (B, N, C).

    With ``in_parts``, the CPU multiplies the tokens in their 16-bit dtype.
    """
    N = x.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    # Centering by the mean of a sample saves a pass over all tokens; G and the mean are corrected
    # afterward. The center is rounded to the dtype of x, so that both dtypes represent it.
    sample = x[:, :: (N - 1) // SAMPLED_TOKENS + 1]
    center = sample.mean(1, keepdim=True, dtype=dtype).to(x.dtype).to(dtype)  # (B, 1, C)
    products, sums = (_sums_of_parts if in_parts else _centered_sums)(x, center)
    shift = sums / N  # (B, 1, C)
    G = torch.baddbmm(products, shift.mT, shift, beta=1 / N, alpha=-1)
    return G, (to_widest(center) + to_widest(shift)).squeeze(1)


def with_moments(x: Tensor, in_parts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return x (B, N, C), its covariance (B, C, C) and mean (B, C), with one backward function."""
    # In traced graphs, plain operations replace the function, which a compiler's debugging backend
    # would differentiate only once, in silence. Sums in float32 of 16-bit products have no
    # derivative, so the function stays for them: other backends refuse second derivatives.
    is_composed = is_traced() and not (_has_wide_bmm(x) and torch.compiler.is_compiling())
    if torch.is_grad_enabled() and not (is_composed or is_transformed()):
        return _Moments.apply(x, in_parts)
    return x, *moments(x, in_parts)


def to_widest(t: Tensor) -> Tensor:
    """Return a tensor in float64, if the device supports it.

    If the mean of the tokens is large, large terms cancel in q and k and in the gradients.
    """
    return t.to(torch.promote_types(t.dtype, widest_dtype(t.device)))


class _Moments(Function):
    """Map x to (x, *moments(x)), so that one backward function sums all gradients of x.

    The backward function is differentiable: it consists of differentiable operations on x and on
    the mean, which is an output of this function.
    """

    @staticmethod
    def forward(ctx, x: Tensor, in_parts: bool) -> tuple[Tensor, Tensor, Tensor]:
        G, s = moments(x, in_parts)
        ctx.save_for_backward(x, s)
        return x.view_as(x), G, s

    @staticmethod
    def backward(ctx, dx: Tensor, dG: Tensor, ds: Tensor) -> tuple[Tensor, None]:
        x, s = ctx.saved_tensors
        N = x.shape[1]
        rounded = (dG + dG.mT).to(x.dtype)  # once: the same values multiply x and s
        # The factor 1 / N stays out of the matrix, where float16 would flush it to zero.
        dx = torch.baddbmm(dx, x, rounded, alpha=1 / N)
        of_mean = ds[:, None] - s[:, None] @ rounded.to(s.dtype)
        return dx.add_((of_mean / N).to(x.dtype)), None


def _has_wide_bmm(x: Tensor) -> bool:
    """Return whether x has 16 bits, and its products can be returned in float32."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and BMM_HAS_OUT_DTYPE


def _centered_sums(x: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x - center)^T (x - center), (B, C, C), and the sum of x - center, (B, 1, C)."""
    # This product has no derivative.
    widen = _has_wide_bmm(x) and not (torch.is_grad_enabled() or is_transformed())
    x = x - center.to(x.dtype) if widen else x - center
    products = torch.bmm(x.mT, x, out_dtype=center.dtype) if widen else x.mT @ x
    return products, x.sum(1, keepdim=True, dtype=center.dtype)


def _sums_of_parts(x: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`_centered_sums` returns, for tokens that are multiplied in 16 bits.

    The product of each part is rounded to 16 bits. If parts are short, their errors cancel out.
    """
    products, sums = 0.0, 0.0
    for chunk in x.split(PARTS * PART, dim=1):
        chunk = F.pad(chunk - center.to(x.dtype), (0, 0, 0, -chunk.shape[1] % PART))
        parts = chunk.unflatten(1, (-1, PART))
        products = products + (parts.mT @ parts).sum(1, dtype=center.dtype)
        sums = sums + chunk.sum(1, keepdim=True, dtype=center.dtype)
    return products, sums
