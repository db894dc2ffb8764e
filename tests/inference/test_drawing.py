"""Pictures of predictions show what was predicted, where, and nothing else."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from xcit_mm.engine.hooks.pictures import PictureHook
from xcit_mm.inference import Detections, Segmentation

CLASSES = ('cat', 'dog', 'car')
PALETTE = ((255, 0, 0), (0, 200, 0), (0, 0, 255))
GREY = 100


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.uint8)


def detections(image: np.ndarray, boxes: list, labels: list, masks=None) -> Detections:
    scores = np.linspace(0.9, 0.5, len(boxes))
    return Detections(
        image, np.array(boxes, float), scores, np.array(labels), masks, CLASSES, PALETTE
    )


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(-1).sum())


@pytest.mark.parametrize('corner', [(2, 2), (578, 378), (-30, -30), (620, 420)])
def test_no_text_is_cut_off_by_the_border(corner):
    in_the_middle = detections(grey(400, 600), [(300, 200, 320, 220)], [0]).draw()
    at_the_border = detections(grey(400, 600), [(*corner, *np.add(corner, 20))], [0]).draw()
    # All of the white letters is there.
    assert count(at_the_border, (255, 255, 255)) == count(in_the_middle, (255, 255, 255)) > 10


@pytest.mark.parametrize(
    ('size', 'drawn'),
    [((160, 200), (320, 400)), ((400, 500), (400, 500)), ((2, 3000), (2, 3000))],
)
def test_small_pictures_are_enlarged(size, drawn):
    image = grey(*size)
    mask = np.zeros((1, *size), bool)
    mask[0, :20, 30:40] = True
    picture = detections(image, [(30, 0, 40, 20)], [1], mask).draw()
    labels = np.zeros(size, np.uint8)
    assert Segmentation(image, labels, CLASSES, PALETTE).draw().shape[1] == drawn[1]
    assert picture.shape[:2] == drawn and (image == GREY).all()
    factor = drawn[0] // size[0]
    assert not (picture[factor, 35 * factor] == GREY).all()
    assert size[0] == 2 or (picture[45 * factor, 60 * factor] == GREY).all()


def test_the_object_with_the_highest_score_is_on_top():
    masks = np.zeros((2, 400, 400), bool)
    masks[0, 100:200, 100:200] = masks[1, 50:250, 50:250] = True
    boxes = [(100, 100, 200, 200), (50, 50, 250, 250)]
    picture = detections(grey(400, 400), boxes, [0, 1], masks).draw()
    red, green = picture[150, 150], picture[230, 150]
    assert red[0] > red[1] and green[1] > green[0]
    assert (picture[300, 300] == GREY).all()
    without_masks = detections(grey(400, 400), boxes, [0, 1])
    assert (without_masks.draw()[150, 150] == GREY).all()
    assert 'segmentation' not in without_masks.to_coco(1)[0]
    assert without_masks.to_coco(1)[0]['area'] == 1e4


@pytest.mark.parametrize(('size', 'expected'), [(400, 2), (4000, 10)])
def test_lines_grow_with_the_picture(size, expected):
    box = size // 4, size // 2, size // 2, size - 9
    picture = detections(grey(size, size), [box], [0]).draw()
    assert count(picture[size * 3 // 4, : size // 3], PALETTE[0]) == expected


def test_regions_have_the_colour_of_their_class_and_a_legend():
    labels = np.zeros((400, 500), np.uint8)
    labels[:100] = 1
    segmentation = Segmentation(grey(400, 500), labels, CLASSES, PALETTE)
    assert segmentation.shares() == {0: 0.75, 1: 0.25}
    legend = segmentation.draw()[400:]
    assert legend.shape[1] == 500 and 20 < len(legend) < 60
    assert count(legend, PALETTE[0]) > 50 < count(legend, PALETTE[1])
    assert count(legend, PALETTE[2]) == 0
    for opacity, colour in ((0, (GREY,) * 3), (0.5, (50, 150, 50)), (1, PALETTE[1])):
        assert tuple(segmentation.draw(opacity)[0, 0]) == colour


def test_legends_of_a_number_of_rows_have_one_size():
    labels = np.arange(400, dtype=np.int16)[:, None].repeat(500, 1) % 300
    many = Segmentation(grey(400, 500), labels, ('name',) * 300, ((9, 9, 9),) * 300)
    one = Segmentation(grey(400, 500), labels * 0, CLASSES, PALETTE)
    assert one.draw(legend_rows=3).shape == many.draw(legend_rows=3).shape
    assert len(many.draw()) > len(many.draw(legend_rows=3))


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_a_training_shows_ground_truth_left_and_prediction_right(tmp_path, task):
    from mmdet.structures.mask import BitmapMasks

    path = tmp_path / 'a.png'
    cv2.imwrite(str(path), grey(400, 500))
    sample = BaseDataElement(metainfo=dict(img_path=str(path), ori_shape=(400, 500)))
    labels = torch.full((1, 400, 500), 255)
    labels[:, 100:200, 100:200] = 0
    if task == 'detection':
        boxes = torch.tensor([[100.0, 100, 200, 200]])
        masks = BitmapMasks((labels == 0).byte().numpy(), 400, 500)
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([0]), masks=masks)
        sample.pred_instances = InstanceData(
            bboxes=boxes.repeat(2, 1) + 200,
            labels=torch.tensor([2, 1]),
            scores=torch.tensor([0.4, 0.9]),
        )
    else:
        sample.gt_sem_seg = PixelData(data=labels)
        sample.pred_sem_seg = PixelData(data=torch.ones_like(labels))
    dataset = SimpleNamespace(metainfo=dict(classes=CLASSES, palette=PALETTE))
    runner = SimpleNamespace(test_loop=SimpleNamespace(dataloader=SimpleNamespace(dataset=dataset)))
    PictureHook(str(tmp_path / 'pictures')).after_test_iter(runner, outputs=[sample])
    picture = cv2.imread(str(tmp_path / 'pictures/a.png'))[..., ::-1]
    assert picture.shape[1] == 1000 and (picture[250, 450] == GREY).all()
    assert tuple(picture[150, 150]) == (178, 50, 50)
    assert tuple(picture[350, 800]) == (PALETTE[1] if task == 'detection' else (50, 150, 50))
    assert count(picture, PALETTE[2]) == 0
