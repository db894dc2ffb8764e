"""Predictions in Python: objects one by one, and in supervision, pandas and shapely and back."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
import shapely
import supervision
from mmengine.structures import PixelData
from pycocotools import mask as coco_mask
from rasterio import features
from torch import from_numpy

from xcit_mm.predict.results import Detections, Heights, Segmentation
from xcit_mm.predict.results.drawing import topmost_masks

SIZE = 90, 120
CLASSES = ('cat', 'dog', 'car')
PALETTE = ((255, 0, 0), (0, 200, 0), (0, 0, 255))
IMAGE = np.arange(90 * 120 * 3, dtype=np.uint8).reshape(*SIZE, 3)


def detections(number: int = 8, with_masks: bool = True) -> Detections:
    """Objects whose masks overlap, have holes and several parts, reach the border or are empty."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 60, (number, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 30, (number, 2))], 1)
    masks = rng.random((number, *SIZE)) < 0.4
    masks[:, :, 100:] = False
    masks[:1], masks[1:2] = False, True
    scores = np.linspace(0.95, 0.2, number, dtype=np.float32)
    labels = rng.integers(0, 2, number)
    masks = masks if with_masks else None
    return Detections(IMAGE, boxes.astype(np.float32), scores, labels, masks, CLASSES, PALETTE)


def segmentation(dtype: type = np.uint8) -> Segmentation:
    labels = np.random.default_rng(0).integers(0, 2, SIZE).astype(dtype)
    labels[20:60, 30:100] = 2
    labels[30:40, 50:60] = 1
    return Segmentation(IMAGE, labels, CLASSES, PALETTE)


def panoptic() -> Segmentation:
    """Two cats, which touch, and cars on pixels of no class."""
    ids = np.full((1, *SIZE), len(CLASSES), np.int32)
    ids[:, 10:30, 10:30], ids[:, 30:50, 10:40], ids[:, 60:, 90:] = 1000, 2000, 2
    return Segmentation.from_panoptic(PixelData(sem_seg=from_numpy(ids)), IMAGE, CLASSES, PALETTE)


def assert_same(found: Detections, expected: Detections) -> None:
    for name in ('image', 'boxes', 'scores', 'labels'):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.masks is None) == (expected.masks is None)
    assert found.masks is None or np.array_equal(found.masks, expected.masks)
    assert (found.classes, found.palette) == (expected.classes, expected.palette)


@pytest.mark.parametrize('with_masks', [False, True])
def test_objects_come_one_by_one(with_masks):
    found = detections(with_masks=with_masks)
    objects = list(found)
    assert len(objects) == len(found) == 8
    for i, (box, score, label, name, mask) in enumerate(objects):
        assert np.array_equal(box, found.boxes[i]) and score == found.scores[i]
        assert label == found.labels[i] and name == CLASSES[label]
        assert mask is None if not with_masks else np.array_equal(mask, found.masks[i])
    last = objects[-1]
    for index in (7, -1, np.int64(7), np.array(7)):
        assert np.array_equal(found[index].box, last.box) and found[index].score == last.score
    assert [type(value) for value in last[1:4]] == [float, int, str]
    assert list(detections(0, with_masks)) == []


@pytest.mark.parametrize('with_masks', [False, True])
def test_objects_are_selected_like_those_of_an_array(with_masks):
    found = detections(with_masks=with_masks)
    for index in (
        slice(None, None, -1),
        slice(0, 0),
        np.array([6, 0, 0]),
        found.labels == 1,
    ):
        values = {name: getattr(found, name)[index] for name in ('boxes', 'scores', 'labels')}
        masks = found.masks[index] if with_masks else None
        assert_same(found[index], replace(found, **values, masks=masks))
    assert found[:] is found[np.ones(8, bool)] is found  # without a copy of the masks
    assert_same(found.above(0.5), found[found.scores >= 0.5])
    for index in (8, -9, np.ones(7, bool), 'cat', 1.5):
        with pytest.raises(IndexError):
            found[index]


def test_a_prediction_is_described_in_a_line():
    found = detections()
    counts = np.bincount(found.labels)
    names = [f'{counts[1]} dog', f'{counts[0]} cat'][:: 1 if counts[1] > counts[0] else -1]
    assert repr(found) == (
        f'Detections(8 objects in 120x90: {", ".join(names)}; scores 0.20 to 0.95)'
    )
    assert repr(detections(0)) == 'Detections(no objects in 120x90)'
    corners = ', '.join(f'{x:.1f}' for x in found.boxes[0])
    assert repr(found[0]) == f'DetectedObject({CLASSES[found.labels[0]]} 0.95 at {corners})'
    many = (np.arange(90 * 120) % 7).astype(np.uint8).reshape(SIZE)
    many = Segmentation(IMAGE, many, tuple('abcdefg'), ((0, 0, 0),) * 7)
    assert repr(many).endswith(' 14.3% e, ...)')
    values = np.linspace(-1.5, 30.25, 90 * 120, dtype=np.float32).reshape(SIZE)
    assert repr(Heights(IMAGE, values)) == 'Heights(120x90: -1.5 to 30.25)'
    assert repr(Heights(IMAGE, values * np.nan)) == 'Heights(120x90: no data)'


def test_annotations_of_coco_have_the_names_and_the_areas_of_the_masks():
    found = detections()
    annotations = found.to_coco(3)
    assert [a['category_name'] for a in annotations] == [CLASSES[i] for i in found.labels]
    assert [a['category_id'] for a in annotations] == [i + 1 for i in found.labels]
    areas = found.masks.sum((1, 2))
    assert [a['area'] for a in annotations] == areas.tolist()
    masks = coco_mask.decode([a['segmentation'] for a in annotations])
    assert np.array_equal(np.moveaxis(masks, 2, 0), found.masks)


@pytest.mark.parametrize('with_masks', [False, True])
@pytest.mark.parametrize('number', [0, 8])
def test_detections_go_to_supervision_and_back(number, with_masks):
    found = detections(number, with_masks)
    theirs = found.to_supervision()
    assert isinstance(theirs, supervision.Detections) and len(theirs) == number
    assert theirs.data['class_name'].tolist() == [CLASSES[i] for i in found.labels]
    assert_same(Detections.from_supervision(theirs, IMAGE, CLASSES, PALETTE), found)
    # What supervision itself does with them.
    picture = supervision.BoxAnnotator().annotate(IMAGE.copy(), theirs)
    picture = supervision.LabelAnnotator().annotate(picture, theirs)
    assert (picture != IMAGE).any() == (number > 0)
    kept = theirs[theirs.confidence > 0.5]
    back = Detections.from_supervision(kept, IMAGE, list(CLASSES))
    assert len(back) == len(found.above(0.5)) and len(set(back.palette)) == 3
    np.testing.assert_array_equal(back.boxes, found.above(0.5).boxes)


def test_detections_of_other_models_come_from_supervision():
    boxes = np.array([[1, 2, 30, 40], [5, 5, 60, 60], [0, 0, 9, 9]])
    theirs = supervision.Detections(boxes, class_id=np.array([2, 0, 1]))
    found = Detections.from_supervision(theirs, np.zeros(SIZE, np.uint16), CLASSES)
    assert found.scores.tolist() == [1, 1, 1] and found.image.shape == (*SIZE, 3)
    assert found.draw().ndim == 3
    theirs.confidence = np.array([0.2, 0.9, 0.5])
    found = Detections.from_supervision(theirs, IMAGE, CLASSES)
    assert found.scores.tolist() == [0.9, 0.5, 0.2] and found.labels.tolist() == [0, 1, 2]
    assert np.array_equal(found.boxes, boxes[[1, 2, 0]])


@pytest.mark.parametrize('dtype', [np.uint8, np.int16])
def test_a_segmentation_goes_to_supervision_and_back(dtype):
    expected = segmentation(dtype)
    theirs = expected.to_supervision()
    assert theirs.class_id.tolist() == [0, 1, 2] and theirs.confidence is None
    assert theirs.data['class_name'].tolist() == list(CLASSES)
    assert theirs.mask.sum(0).all()
    assert theirs.xyxy[2].tolist() == [30, 20, 100, 60]
    back = Segmentation.from_supervision(theirs, IMAGE, CLASSES, PALETTE)
    assert np.array_equal(back.labels, expected.labels) and back.segments is None
    assert (back.classes, back.palette) == (CLASSES, PALETTE)
    back = Segmentation.from_supervision(theirs[theirs.class_id > 0], IMAGE, CLASSES)
    assert ((back.labels == 3) == (expected.labels == 0)).all()
    assert back.shares()[2] == expected.shares()[2]
    empty = Segmentation.from_supervision(theirs[:0], IMAGE, CLASSES)
    assert (empty.labels == 3).all() and len(empty.to_supervision()) == 0


def test_where_masks_overlap_a_segmentation_has_the_first_one():
    found = detections()
    labels = Segmentation.from_supervision(found.to_supervision(), IMAGE, CLASSES).labels
    assert np.array_equal(labels, np.array([3, *found.labels])[topmost_masks(found.masks)])


def test_segments_go_to_supervision_and_back():
    expected = panoptic()
    theirs = expected.to_supervision()
    assert theirs.class_id.tolist() == [2, 0, 0] and theirs.data['segment'].tolist() == [
        2,
        1000,
        2000,
    ]
    back = Segmentation.from_supervision(theirs, IMAGE, CLASSES, PALETTE)
    assert np.array_equal(back.labels, expected.labels)
    assert np.array_equal(back.segments, expected.segments)
    assert back.segments.dtype == expected.segments.dtype


@pytest.mark.parametrize('with_masks', [False, True])
@pytest.mark.parametrize('number', [0, 8])
def test_detections_are_a_table(number, with_masks, tmp_path):
    found = detections(number, with_masks)
    table = found.to_pandas()
    assert list(table) == ['label', 'name', 'score', 'x1', 'y1', 'x2', 'y2', 'area']
    assert len(table) == number
    table.to_csv(tmp_path / 'a.csv', index=False)
    read = pandas.read_csv(tmp_path / 'a.csv')
    boxes = read[['x1', 'y1', 'x2', 'y2']].to_numpy(float)
    np.testing.assert_allclose(boxes, found.boxes, rtol=0, atol=0.01)
    np.testing.assert_allclose(read['score'].to_numpy(float), found.scores, rtol=1e-6)
    assert read['label'].tolist() == found.labels.tolist()
    assert table['name'].tolist() == [CLASSES[i] for i in found.labels]
    left, top, right, bottom = found.boxes.T
    areas = found.masks.sum((1, 2)) if with_masks else (right - left) * (bottom - top)
    np.testing.assert_allclose(table['area'], areas, rtol=1e-5)
    # The tables of several images, one of which has no objects, have the types of each.
    both = pandas.concat(dict(a=table, b=detections(0).to_pandas()), names=['image'])
    assert (both.dtypes == table.dtypes).all()


def test_classes_of_pixels_are_a_table():
    found = panoptic()
    table = found.to_pandas()
    assert list(table) == ['label', 'name', 'pixels', 'share']
    assert table['name'].tolist() == list(CLASSES) and table['label'].tolist() == [0, 1, 2]
    assert table['pixels'].tolist() == [20 * 20 + 20 * 30, 0, 30 * 30]
    np.testing.assert_allclose(table['share'], table['pixels'] / (90 * 120))


def test_polygons_of_masks_are_exact():
    found = detections()
    polygons = found.to_polygons()
    assert shapely.is_valid(polygons).all() and polygons.shape == (8,)
    assert {polygon.geom_type for polygon in polygons} == {'MultiPolygon'}
    assert shapely.area(polygons).tolist() == found.areas.tolist()
    assert polygons[0].is_empty and polygons[1].equals(shapely.box(0, 0, 120, 90))
    for polygon, mask in zip(polygons[1:], found.masks[1:], strict=True):
        assert np.array_equal(features.rasterize([polygon], SIZE), mask)
    assert any(part.interiors for part in polygons[2].geoms)
    assert detections(0).to_polygons().shape == (0,)


@pytest.mark.parametrize('number', [0, 8])
def test_polygons_without_masks_are_the_boxes(number):
    found = detections(number, with_masks=False)
    polygons = found.to_polygons()
    assert len(polygons) == number and np.array_equal(shapely.bounds(polygons), found.boxes)


@pytest.mark.parametrize('dtype', [np.uint8, np.int16])
def test_polygons_of_classes_are_exact(dtype):
    found = segmentation(dtype)
    polygons = found.to_polygons()
    assert list(polygons) == [0, 1, 2] and all(polygon.is_valid for polygon in polygons.values())
    drawn = features.rasterize([(p, label) for label, p in polygons.items()], SIZE, 9)
    assert np.array_equal(drawn, found.labels)
    assert len(polygons[2].geoms) == 1 and len(polygons[2].geoms[0].interiors) == 1
    assert list(panoptic().to_polygons()) == [0, 2]
