"""Lower learning rates for lower layers of the backbone."""

from typing import Any

from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..network import XCiT
from .parameter_groups import MergedGroupsConstructor


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(MergedGroupsConstructor):
    """``MergedGroupsConstructor``, with lower learning rates for lower layers of an XCiT.

    With ``layer_decay`` d, above 0 and up to 1, in ``paramwise_cfg`` and a backbone that computes n
    blocks, a parameter has the rate ``lr * lr_mult * d ** (n + 1 - layer)``. The patch and position
    embeddings are layer 0, and block i, counted from 0, is layer i + 1. The pyramid, the norms of
    its maps, the neck and the heads are layer n + 1 and have the full rate, as in BEiT (arXiv
    2106.08254) and ViTDet (arXiv 2203.16527). ``lr_mult`` and the weight decay follow from the
    other fields of ``paramwise_cfg``, such as ``custom_keys``.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self._decay = self.paramwise_cfg['layer_decay']
        self._full_rate = self.base_lr
        self._exponents: dict[nn.Module, int] = {}  # of the decay, where it is not 0

    def add_params(self, params: list[dict], module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Add the parameters of a module and of its children, at the rates of their layers."""
        if isinstance(module, XCiT):
            self._exponents |= _exponents(module)
        self.base_lr = rate = self._full_rate * self._decay ** self._exponents.get(module, 0)
        first = len(params)
        super().add_params(params, module, *args, **kwargs)  # calls this method for the children
        for group in params[first:]:
            group.setdefault('lr', rate)


def _exponents(backbone: XCiT) -> dict[nn.Module, int]:
    """Return the exponent of each module in the embeddings and blocks of a backbone."""
    blocks = backbone.blocks[: backbone.out_indices[-1] + 1]
    layers = [[backbone.patch_embed, backbone.pos_embeder], *([block] for block in blocks)]
    return {
        module: len(layers) - layer
        for layer, parts in enumerate(layers)
        for part in parts
        for module in part.modules()
    }
