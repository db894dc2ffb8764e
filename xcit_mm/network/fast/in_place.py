"""A block of XCiT in evaluation, whose branches are added without a new tensor for each.

Large images are also computed with these parts, tile by tile (:mod:`xcit_mm.large_images.passes`).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..rows import ALONE, Rows
from .tracing import computed_dtype, is_captured, is_transformed
from .unmodified import has_unmodified_layers, is_unmodified

# Tokens whose values inside the MLP fit the cache of a CPU, so that their memory is reused. Larger
# blocks come from the system as new pages every time, which costs more than GELU itself.
CPU_CHUNK = 1024


def is_in_place(block: nn.Module) -> bool:
    """Return whether the block may compute in place now: nothing is trained or transformed."""
    is_inference = not (torch.is_grad_enabled() or block.training or is_transformed())
    return is_inference and can_be_in_place(block)


def can_be_in_place(block: nn.Module) -> bool:
    """Return whether no hook is called with a tensor that is overwritten, or tokens in chunks."""
    branches = block.attn, block.mlp
    are_unmodified = all(
        is_unmodified(b, block.BRANCHES) and has_unmodified_layers(b) for b in branches
    )
    return are_unmodified and is_unmodified(block.norm3) and is_unmodified(block.norm2)


def add_attention_and_interaction(
    block: nn.Module,
    x: Tensor,
    H: int,
    W: int,
    attention: Callable[[Tensor], Tensor],
    rows: Rows = ALONE,
) -> Tensor:
    """Add the first two branches to tokens (B, N, C), with ``attention`` of the normed tokens.

    One new tensor collects the branches. LayerScale is a factor of these additions. The local
    interaction reads other tokens through ``rows``.
    """
    y = attention(block.norm1(x)).to(x.dtype)
    y = torch.addcmul(x, block.gamma1, y, out=y)
    return y.addcmul_(block.gamma3, rows.call(block.local_mp, block.norm3(y), H, W).to(y.dtype))


def add_mlp_(block: nn.Module, x: Tensor) -> Tensor:
    """Add the third branch to contiguous tokens (..., C), in place."""
    tokens = x.flatten(0, -2)
    is_wide = computed_dtype(x) in (torch.float32, torch.float64)
    in_chunks = x.device.type == 'cpu' and is_wide and not is_captured()
    for chunk in tokens.split(CPU_CHUNK) if in_chunks else (tokens,):
        chunk.addcmul_(block.gamma2, block.mlp(block.norm2(chunk)).to(x.dtype))
    return x
