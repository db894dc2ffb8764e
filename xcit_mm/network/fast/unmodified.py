"""The rule that decides whether a layer is called or read as weights."""

from torch import nn

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, nn.LayerNorm)
PYTORCH_LAYERS = (nn.Linear, *CONVOLUTIONS, *NORMS, nn.GELU, nn.Dropout)
_READABLE = {*PYTORCH_LAYERS, nn.Sequential, nn.Identity}


def may_be_read(kind: type[nn.Module]) -> type[nn.Module]:
    """Declare, as a decorator, that fast forms know what layers of a class compute."""
    _READABLE.add(kind)
    return kind


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


def is_plain(module: nn.Module) -> bool:
    """Return whether a module and all modules in it may be read as weights."""
    return all(type(m) in _READABLE and _is_untouched(m) for m in module.modules())


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
