"""The fast attention for those who use timm's XCiT."""

import torch
from torch import nn

from ..environment import require
from ..errors import ArgumentError
from .layers import XCA


def accelerate(model: nn.Module) -> nn.Module:
    """Replace the attention of a timm XCiT by ours, in place: same weights, same outputs.

    The parameters stay the same objects under the same names: an optimizer that has them keeps
    them, checkpoints load as before. Training and evaluation, any size, any dtype.

    Args:
        model: A timm XCiT, or a module that holds one.

    Returns:
        The model itself.

    Raises:
        ValueError: If there is no cross-covariance attention of timm in the model.
    """
    require('timm')
    from timm.models.xcit import XCA as TimmXCA

    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, TimmXCA)
    ]
    if not found:
        raise ArgumentError(
            f"there is no attention of timm's XCiT in {type(model).__name__}: accelerate takes a "
            "model such as timm.create_model('xcit_small_12_p8_224')"
        )
    for parent, name, theirs in found:
        setattr(parent, name, _replacement(theirs))
    return model


def _replacement(theirs: nn.Module) -> XCA:
    with torch.device('meta'):  # draws no random numbers: everything is replaced
        ours = XCA(theirs.proj.in_features, theirs.num_heads).train(theirs.training)
    for name, child in theirs.named_children():
        setattr(ours, name, child)
    ours.temperature = theirs.temperature
    return ours
