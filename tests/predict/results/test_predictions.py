"""The classes of a model have names and colors, and pictures show what was predicted, where."""

import re
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers.random_weights import DETECTOR
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.base.colors import distinct_colors
from xcit_mm.config.load import load_config
from xcit_mm.config.tree import dataset_class
from xcit_mm.predict.results import Detections, Segmentation
from xcit_mm.predict.results.class_names import (
    category_ids,
    check_names,
    classes_and_palette,
    names_classes,
)
from xcit_mm.train.hooks.pictures import PictureHook

COCO = 'configs/mask_rcnn_xcit_n12_16_3x.py'
SHAPES = ('circle', 'square', 'triangle')
EIGHTY = tuple('abcdefgh' * 10)
CLASSES = ('cat', 'dog', 'car')
PALETTE = ((255, 0, 0), (0, 200, 0), (0, 0, 255))
GRAY = 100


def classes_of(config: str, meta: dict, num_classes: int | None):
    cfg = load_config(config, {})
    environment.require(f'{cfg.default_scope}.datasets')
    head = SimpleNamespace(num_classes=num_classes) if num_classes else None
    model = SimpleNamespace(roi_head=SimpleNamespace(bbox_head=head))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return classes_and_palette(cfg, {'meta': meta}, model)


def test_classes_are_named_by_the_config_else_the_checkpoint():
    classes, palette = classes_of(DETECTOR, {'dataset_meta': {'classes': list('abc')}}, 3)
    assert classes == SHAPES and palette[0] == (220, 60, 60)
    with pytest.raises(UserError, match='have 4 classes, but 3 are named'):
        classes_of(DETECTOR, {}, 4)
    with pytest.raises(UserError, match='a SimpleNamespace has neither a box head nor a decode'):
        classes_of(DETECTOR, {}, None)
    for classes, palette in (('classes', 'palette'), ('CLASSES', 'PALETTE')):  # of mmdet 2
        meta = {classes: EIGHTY, palette: [(1, 2, 3)] * 80}
        meta = {'dataset_meta': meta} if classes.islower() else meta
        assert classes_of(COCO, meta, 80) == (EIGHTY, ((1, 2, 3),) * 80)
    names = ['\x1b[2Ja', 'a\nb', '\ud800', 'a' * 10**6] * 20
    classes, _ = classes_of(COCO, {'dataset_meta': {'classes': names}}, 80)
    assert classes[:3] == ('?[2Ja', 'a b', '?') and len(classes[3]) < 120


def test_classes_of_a_checkpoint_have_the_names_and_the_order_of_the_config():
    cfg = load_config(DETECTOR)

    def compare(*names: str, predicts: bool = True) -> str:
        meta = {'dataset_meta': {'classes': names}}
        return check_names(cfg, {'meta': meta}, 'a.pth', predicts=predicts)

    assert compare(*SHAPES) == compare('circle', 'square') == compare() == ''
    assert check_names(cfg, {}, 'a.pth', predicts=True) == ''
    renamed = r'Class 1 is square in metainfo\.classes of .*_shapes\.py, but box in the .* a\.pth'
    assert re.match(renamed, compare('circle', 'box', 'triangle'))
    message = r'class 0 is circle .* but triangle .*: list the classes as triangle, square, circle'
    with pytest.raises(UserError, match=message):
        compare(*SHAPES[::-1])
    assert compare(*SHAPES[::-1], predicts=False).startswith('Class 0 is circle in')


def test_names_of_a_checkpoint_are_taken_if_only_the_class_of_the_dataset_has_others():
    cfg = load_config(COCO)
    assert not names_classes(cfg) and names_classes(load_config(DETECTOR))
    known = dataset_class(cfg.test_dataloader.dataset, cfg.default_scope).METAINFO['classes']
    meta = {'dataset_meta': {'classes': known[::-1]}}
    message = 'class 0 is person in the class of the dataset of .* list the classes as toothbrush'
    with pytest.raises(UserError, match=message):  # of a test, whose labels have the other order
        check_names(cfg, {'meta': meta}, 'a.pth', predicts=True)


@pytest.mark.parametrize('names', [None, [0] * 80])
def test_classes_without_valid_names_have_those_of_the_dataset(names):
    classes, palette = classes_of(COCO, {'dataset_meta': {'classes': names}}, 80)
    assert classes[:2] == ('person', 'bicycle') and palette[0] == (220, 20, 60)


@pytest.mark.parametrize('color', ['red', (-1, 0, 0)])
def test_an_invalid_palette_is_replaced_by_distinct_colors(color):
    meta = {'classes': EIGHTY, 'palette': [color] * 80}
    assert classes_of(COCO, {'dataset_meta': meta}, 80) == (EIGHTY, distinct_colors(80))
    colors = distinct_colors(150)
    assert len(set(colors)) == 150
    first = np.array(colors[:12], float)
    distances = np.linalg.norm(first[:, None] - first[None], axis=-1) + 1e3 * np.eye(12)
    assert distances.min() > 40


def test_the_classes_of_coco_have_the_numbers_of_its_annotations():
    from mmdet.datasets import CocoDataset

    classes = CocoDataset.METAINFO['classes']
    numbers = dict(zip(classes, category_ids(classes), strict=True))
    assert [numbers[n] for n in ('person', 'stop sign', 'tv', 'toothbrush')] == [1, 13, 72, 90]
    assert category_ids(('a', 'b')) == [1, 2]


def gray(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GRAY, np.uint8)


def detections(image: np.ndarray, boxes: list, labels: list, masks=None) -> Detections:
    scores = np.linspace(0.9, 0.5, len(boxes))
    return Detections(
        image, np.array(boxes, float), scores, np.array(labels), masks, CLASSES, PALETTE
    )


def count(picture: np.ndarray, color: tuple[int, int, int]) -> int:
    return int((picture == color).all(-1).sum())


@pytest.mark.parametrize('corner', [(-30, -30), (578, 378)])
def test_no_text_is_cut_off_by_the_border(corner):
    in_the_middle = detections(gray(400, 600), [(300, 200, 320, 220)], [0]).draw()
    at_the_border = detections(gray(400, 600), [(*corner, *np.add(corner, 20))], [0]).draw()
    # All of the white letters is there.
    assert count(at_the_border, (255, 255, 255)) == count(in_the_middle, (255, 255, 255)) > 10


@pytest.mark.parametrize(
    ('size', 'drawn'),
    [((160, 200), (320, 400)), ((400, 500), (400, 500)), ((2, 3000), (2, 3000))],
)
def test_small_pictures_are_enlarged(size, drawn):
    image = gray(*size)
    mask = np.zeros((1, *size), bool)
    mask[0, :20, 30:40] = True
    picture = detections(image, [(30, 0, 40, 20)], [1], mask).draw()
    labels = np.zeros(size, np.uint8)
    assert Segmentation(image, labels, CLASSES, PALETTE).draw().shape[1] == drawn[1]
    assert picture.shape[:2] == drawn and (image == GRAY).all()
    factor = drawn[0] // size[0]
    assert not (picture[factor, 35 * factor] == GRAY).all()
    assert size[0] == 2 or (picture[45 * factor, 60 * factor] == GRAY).all()


def test_the_object_with_the_highest_score_is_on_top():
    masks = np.zeros((2, 400, 400), bool)
    masks[0, 100:200, 100:200] = masks[1, 50:250, 50:250] = True
    boxes = [(100, 100, 200, 200), (50, 50, 250, 250)]
    picture = detections(gray(400, 400), boxes, [0, 1], masks).draw()
    red, green = picture[150, 150], picture[230, 150]
    assert red[0] > red[1] and green[1] > green[0]
    assert (picture[300, 300] == GRAY).all()
    without_masks = detections(gray(400, 400), boxes, [0, 1])
    assert (without_masks.draw()[150, 150] == GRAY).all()
    assert 'segmentation' not in without_masks.to_coco(1)[0]
    assert without_masks.to_coco(1)[0]['area'] == 1e4


def test_regions_have_the_color_of_their_class_and_a_legend():
    labels = np.zeros((400, 500), np.uint8)
    labels[:100] = 1
    segmentation = Segmentation(gray(400, 500), labels, CLASSES, PALETTE)
    assert segmentation.shares() == {0: 0.75, 1: 0.25}
    legend = segmentation.draw()[400:]
    assert legend.shape[1] == 500 and 20 < len(legend) < 60
    assert count(legend, PALETTE[0]) > 50 < count(legend, PALETTE[1])
    assert count(legend, PALETTE[2]) == 0
    for opacity, color in ((0, (GRAY,) * 3), (0.5, (50, 150, 50)), (1, PALETTE[1])):
        assert tuple(segmentation.draw(opacity)[0, 0]) == color


def test_regions_are_outlined_in_the_full_color_of_their_class():
    labels = np.zeros((400, 500), np.int64)
    labels[100:200, 100:200] = 1
    labels[300:, 300:] = 255  # no class
    picture = Segmentation(gray(400, 500), labels, CLASSES, PALETTE).draw()[:400]
    across = picture[90:110, 150].tolist()
    assert across[9] == [*PALETTE[0]] and across[10] == [*PALETTE[1]]
    assert across[5] != [*PALETTE[0]] and across[14] != [*PALETTE[1]]
    assert tuple(picture[299, 400]) == PALETTE[0] and (picture[300:, 300:] == GRAY).all()
    assert count(picture[210:290], PALETTE[0]) == 0


def test_legends_of_a_number_of_rows_have_one_size():
    labels = np.arange(400, dtype=np.int16)[:, None].repeat(500, 1) % 300
    many = Segmentation(gray(400, 500), labels, ('name',) * 300, ((9, 9, 9),) * 300)
    one = Segmentation(gray(400, 500), labels * 0, CLASSES, PALETTE)
    assert one.draw(legend_rows=3).shape == many.draw(legend_rows=3).shape
    assert len(many.draw()) > len(many.draw(legend_rows=3))


def test_segments_of_one_class_are_separated_by_a_line():
    ids = torch.full((1, 400, 500), 3, dtype=torch.int32)  # no class
    ids[:, 100:200, 100:300] = 1001
    ids[:, 100:200, 200:300] += 1000
    segmentation = Segmentation.from_panoptic(
        PixelData(sem_seg=ids), gray(400, 500), CLASSES, PALETTE
    )
    assert segmentation.shares() == {1: 0.1}
    picture = segmentation.draw()
    assert tuple(picture[150, 150]) == tuple(picture[150, 250]) == (50, 150, 50)
    assert (picture[150, 200] == 255).all() and (picture[300, 300] == GRAY).all()


@pytest.mark.parametrize('task', ['detection', 'segmentation', 'panoptic'])
def test_a_training_shows_ground_truth_left_and_prediction_right(tmp_path, task):
    from mmdet.structures.mask import BitmapMasks

    path = tmp_path / 'a.png'
    cv2.imwrite(str(path), gray(400, 500))
    labels = torch.full((1, 400, 500), 255)
    labels[:, 100:200, 100:200] = 0
    masks = BitmapMasks((labels == 0).byte().numpy(), 400, 500)
    boxes = torch.tensor([[100.0, 100, 200, 200]])
    scores, found = torch.tensor([0.29, 0.31]), torch.tensor([2, 1])
    parts = {
        'detection': dict(
            gt_instances=InstanceData(bboxes=boxes, labels=torch.tensor([0]), masks=masks),
            pred_instances=InstanceData(
                bboxes=boxes.repeat(2, 1) + 200, labels=found, scores=scores
            ),
        ),
        'segmentation': dict(
            gt_sem_seg=PixelData(data=labels), pred_sem_seg=PixelData(data=torch.ones_like(labels))
        ),
        'panoptic': dict(
            gt_instances=InstanceData(masks=masks),
            gt_sem_seg=PixelData(sem_seg=labels),
            pred_panoptic_seg=PixelData(sem_seg=torch.full_like(labels, 1001)),
        ),
    }
    meta = dict(img_path=str(path), ori_shape=(400, 500))
    sample = BaseDataElement(metainfo=meta, **parts[task])
    dataset = SimpleNamespace(metainfo=dict(classes=CLASSES, palette=PALETTE))
    runner = SimpleNamespace(test_loop=SimpleNamespace(dataloader=SimpleNamespace(dataset=dataset)))
    hook = PictureHook(str(tmp_path / 'pictures'))
    hook.before_test_epoch(runner)
    hook.after_test_iter(runner, outputs=[sample])
    hook.after_test_epoch(runner)
    picture = cv2.imread(str(tmp_path / 'pictures/a.png'))[..., ::-1]
    assert picture.shape[1] == 1000 and (picture[250, 450] == GRAY).all()
    assert tuple(picture[150, 150]) == (178, 50, 50)
    assert tuple(picture[350, 800]) == (PALETTE[1] if task == 'detection' else (50, 150, 50))
    assert count(picture, PALETTE[2]) == 0
