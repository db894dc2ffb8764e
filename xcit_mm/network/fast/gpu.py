"""A block, a stack of convolutions and the attention in kernels of a GPU.

The kernels are written in Triton, which PyTorch for Linux brings along, and need a GPU of compute
capability 8.0 or later. Where they cannot run, the layers compute, and the log says so once.
"""

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cache

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from ...errors import reason
from .tracing import computed_dtype, without_autocast
from .unmodified import flat_layers

MIN_CAPABILITY = (8, 0)  # bfloat16, and enough shared memory for the tiles
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH = 128  # channels of a head, whose matrices fit into registers
_works_for: dict[Hashable, bool] = {}  # by what the compiled kernels depend on
_failed: set[torch.device] = set()  # on which a kernel failed after it had worked


def can_compute(module: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels can compute an unmodified block or stack for ``x``."""
    if not can_launch(x):
        return False
    from .kernels.norm_gelu import is_conv_stack

    is_block = hasattr(module, 'local_mp')
    is_known = _is_known_block(module) if is_block else is_conv_stack(flat_layers(module))
    return is_known and _works(module, x)


def can_launch(x: Tensor) -> bool:
    """Return whether the kernels run on the device of ``x``, in its dtype."""
    dtypes = x.dtype, computed_dtype(x)
    is_possible = x.device not in _failed and all(dtype in DTYPES for dtype in dtypes)
    return is_possible and _has_kernels(x.device)


def block(block: nn.Module, x: Tensor, H: int, W: int, draws: Sequence[Tensor | None]) -> Tensor:
    """Compute an :class:`.XCABlock` for tokens (B, N, C), N = H * W."""
    return _computed(
        lambda: _block(block, x, H, W, draws), lambda: block(x, H, W, draws=draws), x.device
    )


def conv_stack(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Compute a :class:`.ConvStack` for a map (B, C, H, W)."""
    from .kernels.norm_gelu import conv_stack

    return _computed(lambda: conv_stack(layers, x), lambda: nn.Sequential(*layers)(x), x.device)


def attention(x: Tensor, otherwise: Callable[[], Tensor], *parameters: Tensor | None) -> Tensor:
    """Compute :func:`.xca` in the Gram form."""
    from .kernels.attention import cross_covariance_attention

    return _computed(lambda: cross_covariance_attention(x, *parameters), otherwise, x.device)


def _computed(
    kernels: Callable[[], Tensor], layers: Callable[[], Tensor], device: torch.device
) -> Tensor:
    """Return what the kernels compute; if one fails, what the layers compute, from now on."""
    from .kernels.launch import KernelError

    try:
        return kernels()
    except KernelError as error:
        _failed.add(device)
        _explain(device, str(error))
        return layers()


def _block(block: nn.Module, x: Tensor, H: int, W: int, draws: Sequence[Tensor | None]) -> Tensor:
    from .kernels.attention import attention_branch
    from .kernels.interaction import interaction_branch
    from .kernels.mlp import mlp_branch

    attn, lpi, mlp, dtype = block.attn, block.local_mp, block.mlp, computed_dtype(x)
    conv1, bn, conv2 = lpi.conv1, lpi.bn, lpi.conv2
    draw1, draw3, draw2 = (d if d is None else d.flatten().float() for d in draws)
    with without_autocast(x):
        attention = *_norm(block.norm1), *attn.weights(), block.gamma1
        x = attention_branch(x.contiguous(), *attention, draw1, dtype)
        convolutions = conv1.weight, conv1.bias, bn, bn.weight, bn.bias, conv2.weight, conv2.bias
        interaction = *_norm(block.norm3), *convolutions, block.gamma3
        x = interaction_branch(x, H, W, *interaction, draw3, dtype)
        linears = mlp.fc1.weight, mlp.fc1.bias, mlp.fc2.weight, mlp.fc2.bias
        return mlp_branch(x, *_norm(block.norm2), *linears, block.gamma2, draw2, dtype)


def _norm(norm: nn.LayerNorm) -> tuple[Tensor, Tensor, float]:
    return norm.weight, norm.bias, norm.eps


def _works(module: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels compute a copy of a module, forward and backward.

    They are compiled for it, so that an error comes before anything depends on them.
    """
    if hasattr(module, 'local_mp'):
        sizes = module.mlp.fc1.weight.shape, module.attn.num_heads
    else:
        sizes = tuple(layer.weight.shape for layer in flat_layers(module)[::3])
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), module.training
    key = sizes, next(module.parameters()).dtype, x.device, x.dtype, computed_dtype(x), modes
    if key not in _works_for and not torch.cuda.is_current_stream_capturing():
        _works_for[key] = _try(module, x)
    return _works_for.get(key, True)


def _try(module: nn.Module, x: Tensor) -> bool:
    from .kernels.launch import KernelError
    from .kernels.norm_gelu import conv_stack

    trial = copy.deepcopy(module)
    try:
        if hasattr(module, 'local_mp'):
            tokens = x.detach().new_zeros(1, 256, x.shape[2]).requires_grad_(x.requires_grad)
            y = _block(trial, tokens, 16, 16, (None, None, None))
        else:
            image = x.detach().new_zeros(1, x.shape[1], 32, 32).requires_grad_(x.requires_grad)
            y = conv_stack(flat_layers(trial), image)
        if y.requires_grad:
            y.sum().backward()
    except KernelError as error:
        _explain(x.device, str(error))
        return False
    return True


@cache
def _has_kernels(device: torch.device) -> bool:
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, own = ('.'.join(map(str, pair)) for pair in (MIN_CAPABILITY, capability))
        _explain(device, f'its compute capability is {own}, and they need {needed}')
        return False
    try:
        from .kernels import attention, interaction, mlp, norm_gelu  # noqa: F401
    except ImportError as error:
        _explain(device, f'Triton cannot be used ({reason(error)})')
        return False
    return True


@cache
def _explain(device: torch.device, why: str) -> None:
    message = f'XCiT computes with the layers of PyTorch instead of kernels on {device}: {why}'
    print_log(message, 'current', logging.WARNING)


def _is_known_block(block: nn.Module) -> bool:
    """Return whether the layers of a block have the shapes that the kernels know."""
    attn, lpi, mlp = block.attn, block.local_mp, block.mlp
    norms, C = (block.norm1, block.norm3, block.norm2), attn.proj.out_features
    biased = attn.qkv, attn.proj, mlp.fc1, mlp.fc2, lpi.conv1, lpi.conv2, *norms
    return (
        all(layer.bias is not None for layer in biased)
        and all(norm.normalized_shape == (C,) for norm in norms)
        and all(_is_depthwise(conv, C) for conv in (lpi.conv1, lpi.conv2))
        and mlp.fc1.out_features == 4 * C
        and _has_statistics(lpi.bn)
        and C % 16 == 0
        and C // attn.num_heads <= MAX_HEAD_WIDTH
    )


def _is_depthwise(conv: nn.Conv2d, C: int) -> bool:
    sizes = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    is_usual = sizes == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.padding_mode == 'zeros'
    return is_usual and conv.in_channels == conv.out_channels == conv.groups == C


def _has_statistics(norm: nn.Module) -> bool:
    return norm.affine and norm.track_running_stats
