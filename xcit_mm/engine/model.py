"""Build the model of a config with random weights."""

import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ..environment import quiet, require, require_one_stack
from ..errors import UserError
from .config.errors import config_errors

FRAMEWORKS = ('mmdet', 'mmseg')


def build_model(cfg: Config, device: str) -> nn.Module:
    """Build the detector or segmentor of a config, without reading any weights.

    Args:
        cfg: Result of :func:`xcit_mm.engine.config.load.load_config`.
        device: 'cpu', or 'meta' for shapes that take no memory.

    Returns:
        The model in evaluation mode.

    Raises:
        UserError: If the config has no model, it is not one of mmdet or mmseg, or cannot be built.
    """
    framework = cfg.get('default_scope')
    if cfg.get('model') is None:
        raise UserError(f'the config {cfg.filename} has no model')
    if framework not in FRAMEWORKS:
        choices = ', '.join(FRAMEWORKS)
        raise UserError(f'{cfg.filename}: default_scope={framework!r} is not one of {choices}')
    require_one_stack()
    require('mmcv')
    require(f'{framework}.models')
    scope = DefaultScope.overwrite_default_scope(framework)
    with torch.device(device), config_errors(cfg), scope, quiet():
        return revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
