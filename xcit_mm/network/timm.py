"""The fast attention for timm's XCiT."""

from torch import nn

from ..environment import require
from ..errors import ArgumentError
from .fast.unmodified import is_unmodified
from .layers import XCA


def accelerate(model: nn.Module) -> nn.Module:
    """Replace the attention of a timm XCiT, or of a module that contains one, in place.

    Outputs stay equal. Parameters stay the same objects under the same names: optimizers keep
    working and checkpoints load as before. A subclass, or an attention with hooks or dropout, is
    left as it is.

    Returns:
        The same model.

    Raises:
        ValueError: If the model contains no cross-covariance attention of timm.
    """
    require('timm')
    from timm.models.xcit import XCA as TimmXCA

    attentions = [m for m in model.modules() if is_unmodified(m, (TimmXCA,))]
    attentions = [m for m in attentions if m.attn_drop.p == m.proj_drop.p == 0]
    if not attentions:
        raise ArgumentError(
            f"there is no attention of timm's XCiT without dropout in {type(model).__name__}: "
            "accelerate takes a model such as timm.create_model('xcit_small_12_p8_224')"
        )
    for attention in attentions:
        attention.__class__ = XCA  # whose parameters and layers have the same names as timm's
    return model
