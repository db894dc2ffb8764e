"""The configs of the detection heads, narrow enough for a test, and a step of any model."""

from typing import Any

import torch
from mmengine.config import Config

from helpers import ROOT
from helpers.small_xcit import SMALL

DETR = {
    'num_queries': 10,
    'encoder.num_layers': 1,
    'encoder.layer_cfg.ffn_cfg.feedforward_channels': 32,
    'decoder.num_layers': 1,
    'decoder.layer_cfg.ffn_cfg.feedforward_channels': 32,
}
# Of each head a config, and what makes its model narrow.
HEADS: dict[str, dict[str, Any]] = {
    'cascade_mask_rcnn_xcit_n12_16_shapes': {},
    'dino_xcit_s12_16_12e': DETR,
    'deformable_detr_xcit_s12_16_50e': DETR,
    'rtmdet_xcit_s12_16_3x': {
        'neck.num_csp_blocks': 1,
        'neck.out_channels': 64,
        'neck.norm_cfg.num_groups': 4,
        'bbox_head.in_channels': 64,
        'bbox_head.feat_channels': 64,
    },
}


def narrow(name: str) -> dict[str, Any]:
    """Return the model of a config with a small backbone, as a dict to build it from."""
    model = Config.fromfile(ROOT / 'configs' / f'{name}.py').model
    model.backbone.update(arch=SMALL, out_indices=(0, 1, 2, 3), drop_path_rate=0.2, init_cfg=None)
    model.neck.in_channels = [SMALL['embed_dim']] * len(model.neck.in_channels)
    cfg = Config(dict(model=model))
    cfg.merge_from_dict({f'model.{key}': value for key, value in HEADS[name].items()})
    return cfg.model.to_dict()


def losses_of(model: torch.nn.Module, inputs: list, samples: list) -> dict:
    """Compute losses and gradients, which must be finite, as in a training step."""
    data = dict(inputs=inputs, data_samples=samples)
    losses = model(**model.data_preprocessor(data, training=True), mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    assert torch.isfinite(total)
    return losses


def without_gradient(model: torch.nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def predict(model: torch.nn.Module, inputs: list, samples: list) -> list:
    data = dict(inputs=inputs, data_samples=samples)
    with torch.no_grad():
        return model(**model.eval().data_preprocessor(data), mode='predict')
