"""A block and a stack of convolutions, computed with fewer operations and less memory.

Without gradients, branches are added in place. With gradients, tensors that are large but cheap to
compute are computed again in the backward pass, and LayerScale is multiplied into weights.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import multiplies_bfloat16
from ..rows import ALONE, Rows
from ..tokens import map_to_tokens, tokens_to_map
from .recompute import recompute
from .tracing import computed_dtype, is_traced
from .unmodified import CONVOLUTIONS
from .xca_operator import xca

# Tokens whose values inside the MLP fit the cache of a CPU, so that their memory is reused. Larger
# blocks come from the system as new pages every time, which costs more than GELU itself.
CHUNK = 1024


def block(
    block: nn.Module,
    x: Tensor,
    H: int,
    W: int,
    draws: Sequence[Tensor | None],
    rows: Rows = ALONE,
) -> Tensor:
    """Compute an :class:`.XCABlock` for tokens (B, N, C), N = H * W."""
    attn, lpi, mlp, drop_path = block.attn, block.local_mp, block.mlp, block.drop_path
    if rows is not ALONE:
        x = x + drop_path(block.gamma1 * attn(block.norm1(x), rows), draws[0])
        x = x + drop_path(block.gamma3 * lpi(block.norm3(x), H, W, rows), draws[1])
    elif not (torch.is_grad_enabled() or block.training or lpi.bn.training):
        return add_mlp_(block, add_attention_and_interaction(block, x, H, W, attn))
    else:
        x = x + drop_path(_scaled(_attention, block.gamma1, attn, block.norm1(x)), draws[0])
        y = _scaled(_interaction, block.gamma3, lpi, block.norm3(x), H, W)
        x = x + drop_path(y, draws[1])
    return x + drop_path(_scaled(_mlp, block.gamma2, mlp, block.norm2(x)), draws[2])


def _scaled(
    branch: Callable[..., Tensor], gamma: Tensor, layers: nn.Module, x: Tensor, *size: int
) -> Tensor:
    # Scaling the last projection of the branch keeps one tensor less for the backward pass.
    # In float16 the initial gamma of 1e-5 times a weight would vanish.
    if computed_dtype(x) == torch.float16:
        return gamma * branch(layers, x, *size)
    return branch(layers, x, *size, scale=gamma)


def _attention(attn: nn.Module, x: Tensor, scale: Tensor | None = None) -> Tensor:
    qkv = attn.qkv.weight, attn.qkv.bias
    return xca(x, *qkv, attn.temperature, *_scaled_weights(attn.proj, scale), attn.form)


def _interaction(lpi: nn.Module, x: Tensor, H: int, W: int, scale: Tensor | None = None) -> Tensor:
    """Compute the local interaction; the backward pass computes GELU and BatchNorm again."""
    weights = _scaled_weights(lpi.conv2, scale)
    x = lpi.conv1(tokens_to_map(x, H, W))
    return map_to_tokens(
        recompute(lambda x: lpi.conv2._conv_forward(lpi.bn(F.gelu(x)), *weights), x, within=lpi)
    )


def _mlp(mlp: nn.Module, x: Tensor, scale: Tensor | None = None) -> Tensor:
    """Compute the MLP; GELU's output, as large as its input, is computed again for gradients."""
    weights = _scaled_weights(mlp.fc2, scale)
    return recompute(lambda x: F.linear(F.gelu(x), *weights), mlp.fc1(x), within=mlp)


def _scaled_weights(layer: nn.Module, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weight and bias with which a layer scales its output by (C,)."""
    if scale is None:
        return layer.weight, layer.bias
    return scale.view(-1, *[1] * (layer.weight.ndim - 1)) * layer.weight, scale * layer.bias


def add_attention_and_interaction(
    block: nn.Module,
    x: Tensor,
    H: int,
    W: int,
    attention: Callable[[Tensor], Tensor],
    rows: Rows = ALONE,
) -> Tensor:
    """Add the first two branches to tokens (B, N, C), with ``attention`` of the normed tokens.

    The branches are added in one new tensor, and multiplied by LayerScale in the same operations.
    """
    y = attention(block.norm1(x)).to(x.dtype)
    y = torch.addcmul(x, block.gamma1, y, out=y)
    interaction = _infer_interaction(block.local_mp, block.norm3(y), H, W, rows)
    return y.addcmul_(block.gamma3, interaction.to(y.dtype))


def _infer_interaction(lpi: nn.Module, x: Tensor, H: int, W: int, rows: Rows) -> Tensor:
    x = rows.convolve(lpi.conv1, tokens_to_map(x, H, W))
    # BatchNorm is not folded into the convolution, because that pads with zeros, not shifts.
    factor, shift = (t.to(x.dtype)[:, None, None] for t in batch_norm_affine(lpi.bn))
    x = torch.addcmul(shift, torch.ops.aten.gelu_(x), factor, out=x)
    return map_to_tokens(rows.convolve(lpi.conv2, x))


def add_mlp_(block: nn.Module, x: Tensor) -> Tensor:
    """Add the third branch to contiguous tokens (..., C), in place."""
    tokens, mlp = x.flatten(0, -2), block.mlp
    is_wide = computed_dtype(x) in (torch.float32, torch.float64)
    for chunk in tokens.split(CHUNK) if x.is_cpu and is_wide else (tokens,):
        y = mlp.fc2(linear_gelu(block.norm2(chunk), mlp.fc1.weight, mlp.fc1.bias))
        chunk.addcmul_(block.gamma2, y.to(x.dtype))
    return x


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute GELU of the output of a linear layer, without gradients.

    On a CPU that multiplies bfloat16, GELU alone takes as long as the product. oneDNN applies it
    to the float32 sums before they are rounded and stored.

    Shape:
        x: (..., C), weight: (D, C), bias: (D,). Output: (..., D).
    """
    dtype = computed_dtype(x)
    if x.is_cpu and dtype == torch.bfloat16 and multiplies_bfloat16() and not is_traced():
        x, weight, bias = (t.to(dtype) for t in (x, weight, bias))
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'gelu', [], 'none')
    return torch.ops.aten.gelu_(F.linear(x, weight, bias))


def conv_stack(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Compute a :class:`.ConvStack` for a map (B, C, H, W).

    The backward pass computes BatchNorm and GELU again; inference folds BatchNorm into the
    convolution before it.
    """
    starts = [i for i, layer in enumerate(layers) if isinstance(layer, CONVOLUTIONS)]
    if torch.is_grad_enabled() or any(layer.training for layer in layers):
        within = nn.ModuleList(layers)
        for start, end in pairwise((0, *(i + 1 for i in starts))):  # each ends in a convolution
            x = recompute(nn.Sequential(*layers[start:end]), x, within=within)
        return nn.Sequential(*layers[starts[-1] + 1 :])(x)
    for start, end in pairwise((*starts, len(layers))):
        x = _infer_convolution(x, *layers[start:end])
    return x


def _infer_convolution(
    x: Tensor, conv: nn.Module, norm: nn.Module | None = None, act: nn.Module | None = None
) -> Tensor:
    weight, bias = conv.weight, conv.bias
    if norm is not None:
        factor, shift = batch_norm_affine(norm)
        channels = (1, -1, 1, 1) if isinstance(conv, nn.ConvTranspose2d) else (-1, 1, 1, 1)
        weight = weight * factor.view(channels)
        bias = shift if bias is None else bias * factor + shift
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if isinstance(conv, nn.ConvTranspose2d):
        geometry = conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
        x = F.conv_transpose2d(x, weight, bias, *geometry)
    else:
        x = conv._conv_forward(x, weight, bias)
    return x if act is None else torch.ops.aten.gelu_(x)


def batch_norm_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return factor and shift (C,) of BatchNorm in evaluation, in at least float32."""
    dtype = torch.promote_types(norm.weight.dtype, torch.float32)
    factor = norm.weight.to(dtype) * (norm.running_var.to(dtype) + norm.eps).rsqrt()
    return factor, norm.bias.to(dtype) - norm.running_mean.to(dtype) * factor
