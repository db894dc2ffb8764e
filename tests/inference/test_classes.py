"""Classes are named by the config, else the checkpoint, else the dataset, else by numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.random_weights import DETECTOR
from mmengine.registry import DefaultScope

from xcit_mm import UserError, environment
from xcit_mm.engine.config.load import load_config
from xcit_mm.predictions.classes import category_ids, classes_and_palette, distinct_colours

COCO = 'configs/mask_rcnn_xcit_n12_16_3x.py'
SHAPES = ('circle', 'square', 'triangle')
EIGHTY = tuple('abcdefgh' * 10)


def classes_of(config: str, meta: dict, num_classes: int | None):
    cfg = load_config(config, {})
    environment.require(f'{cfg.default_scope}.datasets')
    head = SimpleNamespace(num_classes=num_classes) if num_classes else None
    model = SimpleNamespace(roi_head=SimpleNamespace(bbox_head=head))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return classes_and_palette(cfg, {'meta': meta}, model)


def test_the_classes_of_the_config_come_first():
    classes, palette = classes_of(DETECTOR, {'dataset_meta': {'classes': list('abc')}}, 3)
    assert classes == SHAPES and palette[0] == (220, 60, 60)
    with pytest.raises(UserError, match='have 4 classes, but 3 are named'):
        classes_of(DETECTOR, {}, 4)
    with pytest.raises(UserError, match='a SimpleNamespace has neither a box head nor a decode'):
        classes_of(DETECTOR, {}, None)


def test_then_those_of_the_checkpoint():
    for classes, palette in (('classes', 'palette'), ('CLASSES', 'PALETTE')):  # of mmdet 2
        meta = {classes: EIGHTY, palette: [(1, 2, 3)] * 80}
        meta = {'dataset_meta': meta} if classes.islower() else meta
        assert classes_of(COCO, meta, 80) == (EIGHTY, ((1, 2, 3),) * 80)
    names = ['\x1b[2Ja', 'a\nb', '\ud800', 'a' * 10**6] * 20
    classes, _ = classes_of(COCO, {'dataset_meta': {'classes': names}}, 80)
    assert classes[:3] == ('?[2Ja', 'a b', '?') and len(classes[3]) < 120


@pytest.mark.parametrize('names', [None, [0] * 80, 'person', 5, {'a': 1}])
def test_then_those_of_the_dataset(names):
    classes, palette = classes_of(COCO, {'dataset_meta': {'classes': names}}, 80)
    assert classes[:2] == ('person', 'bicycle') and palette[0] == (220, 20, 60)


@pytest.mark.parametrize('colour', ['red', ('a', 'b', 'c'), (-1, 0, 0), (0, float('nan'), 0), None])
def test_an_invalid_palette_is_replaced_by_distinct_colours(colour):
    meta = {'classes': EIGHTY, 'palette': [colour] * 80}
    assert classes_of(COCO, {'dataset_meta': meta}, 80) == (EIGHTY, distinct_colours(80))
    colours = distinct_colours(150)
    assert len(set(colours)) == 150
    first = np.array(colours[:12], float)
    distances = np.linalg.norm(first[:, None] - first[None], axis=-1) + 1e3 * np.eye(12)
    assert distances.min() > 40


def test_the_classes_of_coco_have_the_numbers_of_its_annotations():
    from mmdet.datasets import CocoDataset

    classes = CocoDataset.METAINFO['classes']
    numbers = dict(zip(classes, category_ids(classes), strict=True))
    assert [numbers[n] for n in ('person', 'stop sign', 'tv', 'toothbrush')] == [1, 13, 72, 90]
    assert category_ids(('a', 'b')) == [1, 2]
