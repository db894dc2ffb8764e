"""A block, a stack of convolutions and the attention, computed by kernels on a GPU.

The kernels are written in Triton, which comes with PyTorch for Linux, and need a GPU of compute
capability 8.0 or later. Where they cannot run, the layers are called, and the log says so once.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cache

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from ...base.errors import reason
from .tracing import computed_dtype, without_autocast
from .unmodified import flat_layers

MIN_CAPABILITY = (8, 0)  # bfloat16, and enough shared memory for the tiles
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH = 64  # channels of a head, whose matrices fit into registers
# The second and third axis of a grid have up to 65,535 programs, for 64 tokens or half an image.
MAX_TOKENS, MAX_IMAGES = 64 * 65_535, 65_535 // 2
_verified: dict[Hashable, bool] = {}  # by what the compiled kernels depend on
_disabled: set[torch.device] = set()  # on which a kernel has failed


def can_compute(module: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels can compute a block or a stack of known layers for ``x``."""
    if not can_launch(x):
        return False
    if not isinstance(module, nn.Sequential) and not _has_known_shapes(module):
        explain_layers(module, x)
        return False
    return _is_verified(module, x)


def explain_layers(module: nn.Module, x: Tensor) -> None:
    """Log once that the kernels cannot compute the layers of a block or a stack."""
    kind = type(module).__name__
    _explain(x.device, f'a layer of {kind} is modified, or has a shape that they do not compute')


def can_launch(x: Tensor) -> bool:
    """Return whether the kernels run on the device of ``x``, in its dtype."""
    are_known = x.dtype in DTYPES and computed_dtype(x) in DTYPES
    fit_grid = x.dim() != 3 or (len(x) <= MAX_IMAGES and x.shape[1] <= MAX_TOKENS)
    return x.device not in _disabled and are_known and fit_grid and _has_kernels(x.device)


def block(layers: nn.Module, x: Tensor, H: int, W: int, draws: Sequence[Tensor | None]) -> Tensor:
    """Compute an :class:`.XCABlock` for tokens (B, N, C), N = H * W."""
    from .kernels.attention import attention_branch
    from .kernels.interaction import interaction_branch
    from .kernels.mlp import mlp_branch

    attn, lpi, mlp = layers.attn, layers.local_mp, layers.mlp
    convolutions = (
        *_parameters(lpi.conv1),
        lpi.bn,
        *_parameters(lpi.bn),
        *_parameters(lpi.conv2),
    )
    linears = *_parameters(mlp.fc1), *_parameters(mlp.fc2)
    gammas = (gamma.contiguous() for gamma in (layers.gamma1, layers.gamma3, layers.gamma2))
    attention, interaction, dense = (
        (*_parameters(norm), norm.eps, *parameters, gamma)
        for norm, parameters, gamma in zip(
            (layers.norm1, layers.norm3, layers.norm2),
            ([t.contiguous() for t in attn.weights()], convolutions, linears),
            gammas,
            strict=True,
        )
    )
    draw1, draw3, draw2 = (d if d is None else d.flatten().float() for d in draws)
    dtype = computed_dtype(x)
    x = x.to(torch.promote_types(x.dtype, layers.gamma1.dtype)).contiguous()
    x.unflatten(1, (H, W))  # raises an error if these are not the tokens of the map
    drop = layers.drop_path
    x = _computed(
        lambda: attention_branch(x, *attention, draw1, dtype),
        lambda: x + drop(layers.gamma1 * attn(layers.norm1(x)), draws[0]),
        x,
    )
    y = x
    x = _computed(
        lambda: interaction_branch(y, H, W, *interaction, draw3, dtype),
        lambda: y + drop(layers.gamma3 * lpi(layers.norm3(y), H, W), draws[1]),
        x,
    )
    z = x
    return _computed(
        lambda: mlp_branch(z, *dense, draw2, dtype),
        lambda: z + drop(layers.gamma2 * mlp(layers.norm2(z)), draws[2]),
        x,
    )


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    return layer.weight.contiguous(), layer.bias.contiguous()


def conv_stack(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Compute a :class:`.ConvStack` for a map (B, C, H, W)."""
    from .kernels import norm_gelu

    return _computed(lambda: norm_gelu.conv_stack(layers, x), lambda: nn.Sequential(*layers)(x), x)


def attention(x: Tensor, otherwise: Callable[[], Tensor], *parameters: Tensor | None) -> Tensor:
    """Compute :func:`.xca` in the Gram form."""
    from .kernels.attention import cross_covariance_attention

    return _computed(lambda: cross_covariance_attention(x, *parameters), otherwise, x)


def _computed(kernels: Callable[[], Tensor], layers: Callable[[], Tensor], x: Tensor) -> Tensor:
    """Return the result of the kernels or, once a kernel has failed, the result of the layers."""
    from .kernels.launch import KernelError

    if x.device not in _disabled:
        try:
            with without_autocast(x):
                return kernels()
        except KernelError as error:
            _disabled.add(x.device)
            _explain(x.device, str(error))
    return layers()


def _is_verified(module: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels can compute such a module, forward and backward.

    The first call tries them, so that errors occur before anything depends on the kernels.
    """
    if isinstance(module, nn.Sequential):
        weights = tuple(layer.weight for layer in flat_layers(module)[::3])
        sizes = tuple(weight.shape for weight in weights)
    else:
        weights = (module.attn.qkv.weight,)
        sizes = weights[0].shape, module.attn.num_heads
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), module.training
    key = sizes, weights[0].dtype, x.device, x.dtype, computed_dtype(x), modes
    if key not in _verified and not torch.cuda.is_current_stream_capturing():
        _verified[key] = _verify(module, x, weights[0].dtype)
    return _verified.get(key, True)


def _verify(module: nn.Module, x: Tensor, dtype: torch.dtype) -> bool:
    """Try a module of the same shapes, without random numbers and without other processes."""
    from .kernels.launch import KernelError

    grad, is_stack = torch.is_grad_enabled(), isinstance(module, nn.Sequential)
    with torch.device('meta'):
        if is_stack:
            trial = nn.Sequential(*map(_like, flat_layers(module)))
            values = torch.empty(1, x.shape[1], 32, 32)
        else:
            dim = module.attn.proj.out_features
            trial = type(module)(dim, module.attn.num_heads, eta=1.0, drop_path=0.0)
            values = torch.empty(1, 256, dim)
    trial = trial.to(dtype).to_empty(device=x.device).train(module.training)
    for tensor in (*trial.parameters(), *trial.buffers()):
        tensor.detach().zero_()
    values = torch.zeros_like(values, device=x.device, dtype=x.dtype).requires_grad_(grad)
    # A checkpoint around the module must not count the tensors of the trial.
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        disabled = x.device in _disabled
        y = conv_stack([*trial], values) if is_stack else block(trial, values, 16, 16, [None] * 3)
        try:
            if y.requires_grad:
                y.sum().backward()
        except KernelError as error:
            _disabled.add(x.device)
            _explain(x.device, str(error))
    works = x.device not in _disabled
    if not disabled:
        _disabled.discard(x.device)
    return works


def _like(layer: nn.Module) -> nn.Module:
    """Return a new layer of a stack, on the default device."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        sizes = layer.kernel_size, layer.stride, layer.padding
        channels, has_bias = (layer.in_channels, layer.out_channels), layer.bias is not None
        return type(layer)(*channels, *sizes, groups=layer.groups, bias=has_bias)
    return nn.GELU() if isinstance(layer, nn.GELU) else nn.BatchNorm2d(layer.num_features)


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


def _has_known_shapes(block: nn.Module) -> bool:
    """Return whether the layers of a known block have the shapes that the kernels compute."""
    attn, lpi, mlp, C = block.attn, block.local_mp, block.mlp, block.attn.proj.out_features
    norms = block.norm1, block.norm3, block.norm2
    return (
        attn.qkv.bias is not None
        and attn.form != 'direct'
        and C % 16 == 0
        and C // attn.num_heads <= MAX_HEAD_WIDTH
        and mlp.fc1.out_features == 4 * C
        and all(norm.bias is not None and norm.normalized_shape == (C,) for norm in norms)
        and all(_is_depthwise(conv, C) for conv in (lpi.conv1, lpi.conv2))
        and lpi.bn.running_mean.is_contiguous()
        and lpi.bn.running_var.is_contiguous()
    )


def _is_depthwise(conv: nn.Conv2d, C: int) -> bool:
    sizes = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    is_usual = sizes == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.padding_mode == 'zeros'
    return is_usual and conv.in_channels == conv.out_channels == conv.groups == C
