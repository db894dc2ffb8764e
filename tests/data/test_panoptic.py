"""Panoptic annotations are read as they are drawn, and refused if mmdet would misread them."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import ROOT
from helpers.planted import edited
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.config.load import load_config
from xcit_mm.data.audit import annotations as kinds
from xcit_mm.data.audit import audit as check
from xcit_mm.data.transforms.decode import BadImageError

CONFIG = ROOT / 'configs/mask2former_panoptic_xcit_n12_16_shapes.py'
BACKGROUND = 3  # the class after three things


@pytest.fixture(autouse=True)
def _registered():
    environment.require_framework('mmdet')
    init_default_scope('mmdet')


def build(root: Path, change=None, split='train'):
    cfg = load_config(CONFIG, {'data_root': root})
    if change:
        with edited(root / f'coco/annotations/panoptic_{split}2017.json') as content:
            change(content)
    return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


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
        (lambda c: first_segment(c).update(id='red'), r"segments_info\[0\] has the id 'red'"),
        (lambda c: first_segment(c).update(id=2), r'segments_info\[1\] has the id 2 of an'),
    ],
)
def test_an_annotation_file_that_mmdet_would_misread_is_refused(root, change, message):
    with pytest.raises(UserError, match=message):
        build(root, change)


def first_segment(content: dict) -> dict:
    return content['annotations'][0]['segments_info'][0]


def test_an_image_without_an_annotation_cannot_be_evaluated(root):
    assert len(build(root, lambda c: c['annotations'].pop())) == 23  # left out in training
    for number, change in (
        (1, lambda c: c['annotations'].pop(0)),
        (4, lambda c: c.pop('annotations')),
    ):
        message = rf'{number} images, such as 0+25\.jpg, have no annotation'
        with pytest.raises(UserError, match=message):
            build(root, change, 'val')


def test_numbers_in_other_forms_and_dropped_segments_are_said(root, log):
    def change(content: dict) -> None:
        for image in content['images']:
            image |= dict(id=f'id {image["id"]}', width=160.0)
        for category in content['categories']:
            category |= dict(id=str(category['id']), isthing=bool(category['isthing']))
        for annotation in content['annotations']:
            annotation['image_id'] = f'id {annotation["image_id"]}'
            for segment in annotation['segments_info']:
                segment |= dict(id=float(segment['id']), category_id=str(segment['category_id']))
        first_segment(content)['area'] = 0

    original = build(root)
    expected = [original.get_data_info(i)['segments_info'] for i in range(24)]
    dataset = build(root, change)
    assert [dataset.get_data_info(i)['segments_info'] for i in range(24)] == [
        expected[0][1:],
        *expected[1:],
    ]
    assert any('segments_info.category_id are texts or floats' in line for line in log)
    assert any(f'1 x {kinds.NO_SIZE} (dropped); tools/check' in line for line in log)


def test_segments_of_other_images_with_the_same_ids_are_not_read(root, monkeypatch):
    """mmdet reads them and drops them, in quadratic time."""

    from xcit_mm.data.datasets.panoptic import CheckedPanopticDataset  # needs mmdet

    def count(self, raw_data_info: dict) -> dict:
        counts.append(len(raw_data_info['raw_ann_info']))
        return parse(self, raw_data_info)

    counts, parse = [], CheckedPanopticDataset.parse_data_info
    monkeypatch.setattr(CheckedPanopticDataset, 'parse_data_info', count)
    build(root)
    content = json.loads((root / 'coco/annotations/panoptic_train2017.json').read_text())
    assert counts == [len(entry['segments_info']) for entry in content['annotations']]


def test_a_png_with_class_numbers_is_a_bad_image(root):
    """As mmseg's labels: they have none of the ids."""
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
