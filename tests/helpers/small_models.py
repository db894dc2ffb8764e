"""Small models with random weights to export, whose outputs differ from place to place."""

from pathlib import Path

import numpy as np
import torch

from helpers import ROOT
from helpers.random_weights import save_random_weights
from xcit_mm import load_model
from xcit_mm.apps.export.graphs.two_stage import TwoStageGraph

BACKBONE = """
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=32, depth=4, num_heads=4, eta=1.0),
        patch_size=16,
        out_indices=(0, 1, 2, 3),
    ),"""
CONFIGS = dict(
    sem_fpn=f"""
_base_ = '{ROOT}/configs/sem_fpn_xcit_n12_16_shapes.py'
model = dict({BACKBONE}
    neck=dict(in_channels=[32] * 4, out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=16),
)
""",
    upernet=f"""
_base_ = [
    '{ROOT}/configs/_base_/upernet_xcit.py',
    '{ROOT}/configs/_base_/shapes_semantic.py',
    '{ROOT}/configs/_base_/schedule_shapes.py',
]
model = dict({BACKBONE}
    decode_head=dict(in_channels=[32] * 4, channels=16, num_classes=4),
    auxiliary_head=dict(in_channels=32, channels=16, num_classes=4),
)
""",
    detector=f"""
_base_ = '{ROOT}/configs/mask_rcnn_xcit_n12_16_shapes.py'
model = dict({BACKBONE}
    neck=dict(in_channels=[32] * 4),
    roi_head=dict(
        bbox_roi_extractor=dict(finest_scale=28), mask_roi_extractor=dict(finest_scale=28)
    ),
    test_cfg=dict(rpn=dict(nms_pre=100, max_per_img=500)),  # all that NMS leaves
)
""",
)


def save_small(kind: str, folder: Path) -> tuple[Path, Path]:
    """Write the config and a checkpoint of a model of ``CONFIGS``."""
    config, checkpoint = folder / f'{kind}.py', folder / f'{kind}.pth'
    config.write_text(CONFIGS[kind])
    save_random_weights(str(config), checkpoint)
    if kind == 'detector':
        model = load_model(config, checkpoint, 'cpu').module
        _spread(model, model.rpn_head.rpn_cls, 2.0)
        _spread(model, model.rpn_head.rpn_reg, 0.3)
        _spread(model, model.roi_head.bbox_head.fc_cls, 2.0)
        _spread(model, model.roi_head.bbox_head.fc_reg, 0.5)
        _spread(model, model.roi_head.mask_head.conv_logits, 2.0)
        torch.save({'meta': {}, 'state_dict': model.state_dict()}, checkpoint)
    return config, checkpoint


def pixels(batch: int, height: int, width: int) -> np.ndarray:
    """Return noise (batch, 3, height, width) of uint8, always the same."""
    return np.random.default_rng(0).integers(0, 256, (batch, 3, height, width), np.uint8)


def _spread(detector: torch.nn.Module, layer: torch.nn.Module, deviation: float) -> None:
    """Spread outputs around zero: if all scores are nearly equal, rounding decides their order."""
    outputs = []
    handle = layer.register_forward_hook(lambda *args: outputs.append(args[2].transpose(0, 1)))
    with torch.no_grad():
        TwoStageGraph(detector)(torch.from_numpy(pixels(1, 320, 320)).float())
        handle.remove()
        values = torch.cat([output.flatten(1) for output in outputs], dim=1)
        factor = deviation / values.std()
        layer.weight *= factor
        layer.bias.copy_(factor * (layer.bias - values.mean(1)))
