"""The fast attention for timm's XCiT."""

import torch
from torch import nn

from ..environment import require
from ..errors import ArgumentError
from .layers import XCA
from .plain import is_plain


def accelerate(model: nn.Module) -> nn.Module:
    """Replace the attention of a timm XCiT in place and return the model.

    Outputs stay equal. Parameters stay the same objects under the same names: optimizers keep
    working and checkpoints load as before. A subclass, or an attention with hooks, stays as well.

    Args:
        model: timm XCiT, or a module that contains one.

    Raises:
        ValueError: If the model contains no cross-covariance attention of timm.
    """
    require('timm')
    from timm.models.xcit import XCA as TimmXCA

    attentions = [(n, m) for n, m in model.named_modules() if n and is_plain(m, (TimmXCA,))]
    if not attentions:
        raise ArgumentError(
            f"there is no attention of timm's XCiT in {type(model).__name__}: accelerate takes a "
            "model such as timm.create_model('xcit_small_12_p8_224')"
        )
    for name, attention in attentions:
        with torch.device('meta'):  # draws no random numbers: every tensor is replaced below
            fast = XCA(attention.proj.in_features, attention.num_heads)
        for child_name, child in attention.named_children():
            setattr(fast, child_name, child)
        fast.temperature = attention.temperature
        fast.training = attention.training
        parent, _, attribute = name.rpartition('.')
        setattr(model.get_submodule(parent), attribute, fast)
    return model
