"""What kernels store: values in the dtype of a tensor, and parts of sums, added up afterward."""

import triton
import triton.language as tl


@triton.jit
def store(ptr, value, mask):
    """Store values in the dtype of what ``ptr`` points to."""
    tl.store(ptr, value.to(ptr.dtype.element_ty), mask)


@triton.jit
def sum_of_parts(sums_ptr, c, P, STEP: tl.constexpr, C: tl.constexpr, BLOCK_P: tl.constexpr):
    """Add up the parts of P programs for channels ``c``, which lie ``STEP`` values apart."""
    acc = tl.zeros((BLOCK_P, c.shape[0]), tl.float32)
    for start in range(0, P, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        at = p.to(tl.int64)[:, None] * STEP + c[None]
        acc += tl.load(sums_ptr + at, (p < P)[:, None] & (c < C)[None], other=0.0)
    return tl.sum(acc, 0)
