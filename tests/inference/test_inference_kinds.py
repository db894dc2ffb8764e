"""Models that give no boxes and no labels of pixels are refused in a sentence."""

from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from helpers.random_weights import DETECTOR, save_random_weights

from xcit_mm import UserError
from xcit_mm.inference import load_model

SOLO = """
model = dict(
    _delete_=True,
    type='SOLO',
    backbone=dict(type='XCiT', arch='n12', patch_size=16),
    neck=dict(type='FPN', in_channels=[128] * 4, out_channels=32, num_outs=5),
    mask_head=dict(
        type='SOLOHead', num_classes=3, in_channels=32, feat_channels=32, stacked_convs=1
    ),
)
"""
PANOPTIC = """
model = dict(
    type='PanopticFPN',
    semantic_head=dict(
        type='PanopticFPNHead',
        num_things_classes=3,
        num_stuff_classes=2,
        in_channels=64,
        inner_channels=16,
        norm_cfg=dict(type='GN', num_groups=8),
        loss_seg=dict(type='CrossEntropyLoss', ignore_index=255),
    ),
    panoptic_fusion_head=dict(
        type='HeuristicFusionHead', num_things_classes=3, num_stuff_classes=2
    ),
    test_cfg=dict(
        panoptic=dict(
            score_thr=0.6, max_per_img=10, mask_thr_binary=0.5, mask_overlap=0.5, stuff_area_limit=1
        )
    ),
)
"""


def model_of(folder: Path, change: str):
    config = folder / 'changed.py'
    config.write_text(f"_base_ = '{ROOT / DETECTOR}'\n{change}")
    return load_model(config, save_random_weights(str(config), folder / 'a.pth'), 'cpu')


def test_a_model_without_a_head_of_boxes_or_labels_is_named(tmp_path):
    with pytest.raises(UserError, match=r'changed\.py: a SOLO has neither a box head nor a decode'):
        model_of(tmp_path, SOLO)


def test_a_model_that_gives_no_objects_is_named(tmp_path):
    model = model_of(tmp_path, PANOPTIC)
    with pytest.raises(UserError, match='a PanopticFPN gives no objects'):
        model.predict(np.zeros((96, 128, 3), np.uint8))
