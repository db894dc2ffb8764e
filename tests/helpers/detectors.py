"""The detectors of the configs, narrow enough for a test."""

from typing import Any

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from helpers import randomize
from helpers.small_xcit import SMALL
from xcit_mm.base.environment import require_framework
from xcit_mm.config.load import load_config

CHANNELS = 8
ROIS = {
    'rpn_head.in_channels': CHANNELS,
    'rpn_head.feat_channels': CHANNELS,
    'roi_head.bbox_roi_extractor.out_channels': CHANNELS,
}
# Of each config what makes its model narrow, and lets it sample only some of the anchors.
NARROW: dict[str, dict[str, Any]] = {
    'retinanet_xcit_t12_16_1x': {
        'bbox_head.in_channels': CHANNELS,
        'bbox_head.feat_channels': CHANNELS,
        'bbox_head.stacked_convs': 1,
        'bbox_head.num_classes': 3,
    },
    'faster_rcnn_xcit_n12_16_small': {
        **ROIS,
        'roi_head.bbox_head.in_channels': CHANNELS,
        'roi_head.bbox_head.fc_out_channels': 16,
    },
}
NARROW['mask_rcnn_xcit_n12_16_shapes'] = {
    **NARROW['faster_rcnn_xcit_n12_16_small'],
    'roi_head.mask_roi_extractor.out_channels': CHANNELS,
    'roi_head.mask_head.num_convs': 1,
    'roi_head.mask_head.in_channels': CHANNELS,
    'roi_head.mask_head.conv_out_channels': CHANNELS,
}
NARROW['cascade_mask_rcnn_xcit_n12_16_shapes'] = {
    key: value
    for key, value in NARROW['mask_rcnn_xcit_n12_16_shapes'].items()
    if '.bbox_head.' not in key
}


def build(name: str, **options) -> nn.Module:
    """Build a detector of a config on a small backbone, with random weights."""
    cfg = load_config(f'configs/{name}.py').model
    cfg.backbone.update(arch=SMALL, out_indices=(0, 1, 2, 3), init_cfg=None)
    cfg.neck.update(in_channels=[SMALL['embed_dim']] * 4, out_channels=CHANNELS)
    if 'cascade' in name:
        for head in cfg.roi_head.bbox_head:
            head.update(in_channels=CHANNELS, conv_out_channels=CHANNELS, fc_out_channels=16)
    cfg = Config(dict(model=cfg))
    cfg.merge_from_dict({f'model.{k}': v for k, v in (NARROW[name] | options).items()})
    require_framework('mmdet')
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model).eval()
    randomize(model)
    return model


def compute_losses_in_mmdet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mmdet compute the losses of whole images, from the random samples of a streamed one."""
    from mmdet.models.dense_heads import RPNHead
    from mmdet.models.roi_heads import StandardRoIHead

    from xcit_mm.network.heads.batched_roi_head import BatchedRoIHead
    from xcit_mm.network.heads.batched_rpn_head import BatchedRPNHead

    monkeypatch.setattr(BatchedRoIHead, 'loss', StandardRoIHead.loss)
    monkeypatch.setattr(BatchedRPNHead, 'loss_and_predict', RPNHead.loss_and_predict)
