"""Checkpoints of models that were not trained, for what depends on no training."""

from pathlib import Path

import torch
from mmengine.registry import MODELS, DefaultScope

from helpers import randomize
from xcit_mm.base import environment
from xcit_mm.config.load import load_config

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = 'configs/sem_fpn_xcit_n12_16_shapes.py'


def save_random_weights(config: str, path: Path, **options) -> Path:
    """Write a checkpoint for a config, whose predictions differ from place to place."""
    cfg = load_config(config, options)
    environment.require(f'{cfg.default_scope}.models')
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    randomize(model)
    if cfg.default_scope == 'mmseg':  # otherwise the mean of the features decides for one class
        head = model.decode_head.conv_seg
        head.weight.data -= head.weight.data.mean(1, keepdim=True)
        head.bias.data.zero_()
    torch.save({'meta': {}, 'state_dict': model.state_dict()}, path)
    return path
