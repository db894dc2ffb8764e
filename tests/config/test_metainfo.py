"""The classes of a dataset have the same colors in a training and in the pictures of its model."""

from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from xcit_mm.base.colors import distinct_colors
from xcit_mm.base.environment import require
from xcit_mm.config.adapt import adapt
from xcit_mm.config.load import load_config
from xcit_mm.predict.results.class_names import classes_and_palette

COCO = 'mask_rcnn_xcit_n12_16_3x.py'
GIVEN = ((1, 2, 3), (4, 5, 6))


def palette_of(cfg, classes, meta=None):
    """Return the colors of the pictures that a model with a box head predicts."""
    heads = SimpleNamespace(bbox_head=SimpleNamespace(num_classes=len(classes)))
    checkpoint = {'meta': {'dataset_meta': meta or {}}}
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return classes_and_palette(cfg, checkpoint, SimpleNamespace(roi_head=heads))[1]


def test_a_segmentation_dataset_without_colors_has_those_of_the_model(tmp_path):
    require('mmseg.datasets')
    from xcit_mm.data.datasets.segmentation_folders import SegmentationFolders

    for name, mode in (('images', 'RGB'), ('labels', 'L')):
        (tmp_path / name).mkdir()
        Image.new(mode, (8, 8)).save(tmp_path / name / 'a.png')
    places = dict(img_path=str(tmp_path / 'images'), seg_map_path=str(tmp_path / 'labels'))
    for palette in ({}, {'palette': None}, {'palette': GIVEN}):
        cfg = load_config(COCO)
        cfg.default_scope = 'mmseg'
        classes = ['road', 'roof']
        dataset = dict(type=SegmentationFolders.__name__, metainfo=dict(classes=classes, **palette))
        cfg.test_dataloader.dataset = dataset | dict(data_prefix=places)
        expected = palette.get('palette') or distinct_colors(2)
        assert palette_of(cfg, classes) == expected
        adapt(cfg)
        built = DATASETS.build(cfg.test_dataloader.dataset)
        assert np.array_equal(built.metainfo['palette'], expected)


@pytest.mark.parametrize(
    ('classes', 'expected'),
    [(['car', 'person'], ((0, 0, 142), (220, 20, 60))), (['car', 'roof'], None)],
)
def test_classes_of_coco_keep_their_colors_and_others_get_distinct_ones(classes, expected):
    require('mmdet.datasets')
    cfg = load_config(COCO, {'test_dataloader.dataset.metainfo': {'classes': classes}})
    assert palette_of(cfg, classes) == (expected or distinct_colors(2))
    adapt(cfg)
    written = cfg.test_dataloader.dataset.metainfo.get('palette')
    assert written == (expected and [*map(list, expected)])


def test_a_checkpoint_has_the_colors_of_classes_that_the_config_only_names():
    classes = ['road', 'roof']
    cfg = load_config(COCO, {'test_dataloader.dataset.metainfo': {'classes': classes}})
    assert palette_of(cfg, classes, dict(classes=classes, palette=GIVEN)) == GIVEN
    other = dict(classes=classes[::-1], palette=GIVEN)
    assert palette_of(cfg, classes, other) == distinct_colors(2)
