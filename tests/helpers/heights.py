"""Models and files of heights, small enough for any test."""

from pathlib import Path

import numpy as np
import rasterio
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from helpers import randomize
from helpers.segmentors import NARROW
from xcit_mm.base.environment import require_framework
from xcit_mm.config.load import load_config

CONFIG = 'configs/heights_xcit_n12_16_shapes.py'


def build_heights(**head) -> nn.Module:
    """Build the model of the config on a small backbone, with random weights."""
    cfg = load_config(CONFIG).model
    cfg.backbone.update(NARROW)
    cfg.neck.update(in_channels=[32] * 4, out_channels=32)
    cfg.decode_head.update(in_channels=[32] * 4, **head)
    require_framework('mmseg')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg).eval()
    randomize(model)
    return model


def write_heights(path: Path, values: np.ndarray, **options) -> Path:
    """Write values (H, W) or bands (bands, H, W) as a TIFF file; options are rasterio's."""
    bands = values if values.ndim == 3 else values[None]
    count, height, width = bands.shape
    size = dict(count=count, height=height, width=width, dtype=bands.dtype.name)
    with rasterio.open(path, 'w', 'GTiff', **size, **options) as file:
        file.write(bands)
    return path
