"""The rule that decides whether a layer is called, or only its weights are read."""

from collections.abc import Callable, Sequence

from torch import nn

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, nn.LayerNorm)
PYTORCH_LAYERS = (nn.Linear, *CONVOLUTIONS, *NORMS, nn.GELU, nn.Dropout)
BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
# The layers of a block by their places; those of our own classes are added by `plays`.
_PLACES: dict[str, tuple[type[nn.Module], ...]] = {
    **dict.fromkeys(('norm1', 'norm3', 'norm2'), (nn.LayerNorm,)),
    **dict.fromkeys(('attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2'), (nn.Linear,)),
    **dict.fromkeys(('local_mp.conv1', 'local_mp.conv2'), (nn.Conv2d,)),
    'local_mp.act': (nn.GELU,),
    'local_mp.bn': BATCH_NORMS,
}
_FORWARDS: dict[type[nn.Module], Callable[..., object]] = {}  # what the classes computed at first


def plays(place: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Return a decorator that declares a class as known to fast forms in a place of a block."""

    def declare(kind: type[nn.Module]) -> type[nn.Module]:
        _PLACES[place], _FORWARDS[kind] = (kind,), kind.forward
        return kind

    return declare


def is_unmodified(layer: nn.Module, types: tuple[type[nn.Module], ...] = PYTORCH_LAYERS) -> bool:
    """Return whether a layer does exactly what its class does, unchanged and unobserved.

    A layer is modified, and must be called, if

    - its class is not one of ``types``, but a subclass (LoRA, quantization-aware training), a
      wrapper, a replacement (``quantize_dynamic``), or the class of a parametrized layer;
    - it has a forward or backward hook, such as the hooks of pruning and ``weight_norm``;
    - its ``forward`` was replaced on the instance;
    - its weight is a wrapper tensor subclass, such as a quantized weight of torchao.

    Global module hooks do not count: PyTorch's FLOP counter and profilers observe a model through
    them, and it must compute the same while it is observed.
    """
    return type(layer) in types and _is_untouched(layer)


def is_known_block(block: nn.Module) -> bool:
    """Return whether all layers of a block are the layers of XCiT, whose weights may be read."""
    modules = dict(block.named_modules())
    if not all(type(modules.get(place)) in types for place, types in _PLACES.items()):
        return False
    biased = 'attn.proj', 'mlp.fc1', 'mlp.fc2', 'local_mp.conv1', 'local_mp.conv2'
    return (
        all(map(_is_untouched, modules.values()))
        and all(kind.forward is forward for kind, forward in _FORWARDS.items())
        and all(modules[place].bias is not None for place in biased)
        and modules['local_mp.act'].approximate == 'none'
        and _has_statistics(modules['local_mp.bn'])
    )


def is_known_stack(layers: Sequence[nn.Module]) -> bool:
    """Return whether layers are a convolution, followed by BatchNorm, GELU, a convolution, ..."""
    types = CONVOLUTIONS, BATCH_NORMS, (nn.GELU,)
    convs, norms, acts = (layers[i::3] for i in range(3))
    return (
        len(layers) % 3 > 0
        and all(is_unmodified(layer, types[i % 3]) for i, layer in enumerate(layers))
        and all(c.padding_mode == 'zeros' and not isinstance(c.padding, str) for c in convs)
        and all(map(_has_statistics, norms))
        and all(act.approximate == 'none' for act in acts)
    )


def _has_statistics(norm: nn.Module) -> bool:
    return norm.affine and norm.running_mean is not None


def _is_untouched(layer: nn.Module) -> bool:
    return (
        not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
        and 'forward' not in layer.__dict__
        and not hasattr(layer._parameters.get('weight'), '__tensor_flatten__')
    )


def flat_layers(stack: nn.Module) -> list[nn.Module]:
    """Return the layers of nested Sequentials, or a layer itself."""
    layers: list[nn.Module] = []
    for layer in stack if isinstance(stack, nn.Sequential) else (stack,):
        layers += flat_layers(layer) if is_unmodified(layer, (nn.Sequential,)) else [layer]
    return layers
