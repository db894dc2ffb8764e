"""Panoptic annotations are read as they are drawn, and refused if mmdet would misread them."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import ROOT
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from xcit_mm import UserError, environment
from xcit_mm.datasets import check
from xcit_mm.datasets.check_config import check_classes, check_data
from xcit_mm.datasets.images import BadImageError
from xcit_mm.engine.config.load import load_config

CONFIG = ROOT / 'configs/mask2former_panoptic_xcit_n12_16_shapes.py'
BACKGROUND = 3  # the class after three things


@pytest.fixture(autouse=True)
def _registered():
    environment.require_framework('mmdet')
    init_default_scope('mmdet')


@pytest.fixture
def root(shapes_root, tmp_path) -> Path:
    return shutil.copytree(shapes_root, tmp_path / 'shapes')


def build(root: Path, change=None):
    cfg = load_config(CONFIG, {'data_root': root})
    path = root / 'coco/annotations/panoptic_train2017.json'
    if change:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    return DATASETS.build(cfg.train_dataloader.dataset)


def test_masks_and_labels_are_those_of_the_other_layouts(shapes_root):
    dataset = build(shapes_root)
    assert len(dataset) == 24
    for index in range(3):
        info = dataset.get_data_info(index)
        for transform in dataset.pipeline.transforms[:2]:
            info = transform(info)
        ade = shapes_root / 'ade/annotations/training' / Path(info['seg_map_path']).name
        expected = cv2.imread(str(ade), -1).astype(int) - 2  # the background becomes -1
        labels, masks = info['gt_seg_map'], info['gt_masks'].to_ndarray().astype(bool)
        assert np.array_equal(np.where(labels == BACKGROUND, -1, labels), expected)
        assert np.array_equal(masks.sum(0), labels != BACKGROUND)
        for mask, label, box in zip(
            masks, info['gt_bboxes_labels'], info['gt_bboxes'].tensor.tolist(), strict=True
        ):
            assert (labels[mask] == label).all()
            ys, xs = np.nonzero(mask)
            assert box == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda c: c['categories'].reverse(), r'has the 4 classes \(background.*in another order'),
        (lambda c: c['categories'][3].update(isthing=1), r'has the things \(circle.*background\)'),
        (lambda c: c['annotations'][0].pop('segments_info'), r'annotations\[0\] has the segments_'),
        (lambda c: c['images'].clear(), 'none of its 0 images is left'),
    ],
    ids=['order', 'things', 'no segments', 'no images'],
)
def test_an_annotation_file_that_mmdet_would_misread_is_refused(root, change, message):
    with pytest.raises(UserError, match=message):
        build(root, change)


def test_a_png_with_class_numbers_is_a_bad_image(root):
    """As mmseg's labels, which have none of the ids."""
    path = root / 'coco/annotations/panoptic_train2017/000000000001.png'
    Image.fromarray(np.full((160, 160), 99, np.uint8)).save(path)
    dataset = build(root)
    info = dataset.pipeline.transforms[0](dataset.get_data_info(0))
    with pytest.raises(BadImageError, match=r'lacks a segment.*000000000001\.png, 1'):
        dataset.pipeline.transforms[1](info)
    cfg = load_config(CONFIG, {'data_root': root})
    report = check.check_dataset(cfg, ('train', 'val'), workers=1)
    (finding,) = report.findings
    assert finding.file.endswith('000000000001.jpg') and 'lacks a segment' in finding.kind
    assert report.images == dict(train=24, val=4)


def test_the_png_of_an_image_is_the_one_that_the_annotation_names(root):
    """mmdet replaces .jpg in the name of the image."""

    def rename(content: dict) -> None:
        content['annotations'][0]['file_name'] = 'first.png'

    folder = root / 'coco/annotations/panoptic_train2017'
    (folder / '000000000001.png').rename(folder / 'first.png')
    info = build(root, rename).get_data_info(0)
    assert info['seg_map_path'] == str(folder / 'first.png')


def test_heads_and_metrics_have_to_fit_the_data(shapes_root, tmp_path):
    cfg = load_config(CONFIG, {'data_root': shapes_root})
    check_data(cfg, ('train', 'val'))
    check_classes(cfg, ('train', 'val'))
    cfg.model.panoptic_head.num_stuff_classes = 53
    message = r'panoptic_head\.num_stuff_classes=53, but the train .* 1 classes \(background\)'
    with pytest.raises(UserError, match=message):
        check_classes(cfg, ('train',))
    metric = cfg.val_evaluator[0]
    metric.ann_file = shutil.copy(metric.ann_file, tmp_path / 'copy.json')
    with pytest.raises(UserError, match=r'copy\.json is not the annotation file of the val data'):
        check_data(cfg, ('val',))


def test_an_instance_head_has_the_number_of_classes_of_its_dataset(shapes_root):
    name = 'mask2former_instance_xcit_n12_16_shapes.py'
    cfg = load_config(CONFIG.with_name(name), {'data_root': shapes_root})
    check_classes(cfg, ('train', 'val'))
    cfg.model.panoptic_fusion_head.num_things_classes = 80
    with pytest.raises(UserError, match=r'fusion_head\.num_things_classes=80, .* has 3 classes'):
        check_classes(cfg, ('train',))
