"""The fast forms of this package for timm's XCiT."""

from torch import nn

from ..base.environment import require
from ..base.errors import ArgumentError
from .conv_stack import ConvStack
from .fast.unmodified import is_unmodified
from .layers import LPI, XCA, DropPath, Mlp, XCABlock


def accelerate(model: nn.Module) -> nn.Module:
    """Turn the blocks of a timm XCiT, or of a module that contains one, into ours, in place.

    Outputs stay equal. Parameters stay the same objects under the same names: optimizers keep
    working and checkpoints load as before. A block with other layers than the published models
    gets the attention alone. A subclass, or an attention with hooks or dropout, is left as it is.

    Returns:
        The same model.

    Raises:
        ValueError: If the model contains no cross-covariance attention of timm.
    """
    require('timm')
    from timm.models import xcit as timm

    attentions = [m for m in model.modules() if is_unmodified(m, (timm.XCA,))]
    attentions = [m for m in attentions if m.attn_drop.p == m.proj_drop.p == 0]
    if not attentions:
        raise ArgumentError(
            f"{type(model).__name__} has no attention of timm's XCiT without dropout that is not "
            'accelerated already: accelerate takes a model such as '
            "timm.create_model('xcit_small_12_p8_224')"
        )
    for attention in attentions:
        attention.__class__ = XCA  # whose parameters and layers have the same names as timm's
    for module in list(model.modules()):
        if is_unmodified(module, (timm.XCABlock,)):
            _convert_block(module)
        elif is_unmodified(module, (timm.ConvPatchEmbed,)) and type(module.proj) is nn.Sequential:
            acts = [layer for layer in module.proj if not isinstance(layer, nn.Sequential)]
            if all(type(act) is nn.GELU for act in acts):
                module.proj.__class__ = ConvStack
    return model


def _convert_block(block: nn.Module) -> None:
    from timm.layers import DropPath as TimmDropPath
    from timm.layers import Mlp as TimmMlp
    from timm.models.xcit import LPI as TimmLPI

    lpi, mlp, names = block.local_mp, block.mlp, ('drop_path1', 'drop_path3', 'drop_path2')
    types = {(type(block.attn), type(lpi), type(mlp)), (type(lpi.act), type(mlp.act))}
    rates = {
        getattr(block, name).drop_prob if type(getattr(block, name)) is TimmDropPath else 0.0
        for name in names
    }
    if types != {(XCA, TimmLPI, TimmMlp), (nn.GELU, nn.GELU)} or len(rates) > 1:
        return
    if mlp.drop1.p or mlp.drop2.p or type(mlp.norm) is not nn.Identity:
        return
    for name in names:
        delattr(block, name)
    block.drop_path = DropPath(rates.pop()).train(block.training)
    lpi.__class__, mlp.__class__, block.__class__ = LPI, Mlp, XCABlock
