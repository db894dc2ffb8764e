"""The segmentors of the configs, narrow enough for a test."""

from mmengine.registry import MODELS, DefaultScope
from torch import nn

from helpers import randomize
from helpers.small_xcit import SMALL
from xcit_mm.base.environment import require_framework
from xcit_mm.config.load import load_config

NARROW = dict(arch=SMALL, out_indices=(0, 1, 2, 3), init_cfg=None)
HEADS = {
    'sem_fpn_xcit_t12_16_80k': dict(in_channels=[32] * 4),
    'upernet_xcit_t12_8_160k': dict(in_channels=[32] * 4, channels=16),
}


def build(name: str, **backbone) -> nn.Module:
    """Build a segmentor of a config on a small backbone, with random weights."""
    cfg = load_config(f'configs/{name}.py').model
    cfg.backbone.update(NARROW | backbone)
    cfg.decode_head.update(HEADS[name])
    if 'neck' in cfg:
        cfg.neck.update(in_channels=[32] * 4, out_channels=32)
    cfg.pop('auxiliary_head', None)
    require_framework('mmseg')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg).eval()
    randomize(model)
    return model
