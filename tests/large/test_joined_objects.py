"""Objects that slices cut are joined, and neighbors are not."""

import numpy as np
import pytest

from xcit_mm.base.geometry import Window
from xcit_mm.large.maps.objects import Objects
from xcit_mm.predict.large.joined_objects import join
from xcit_mm.predict.large.slices import slices_of

SIZE = 200, 300


def cut_by(slices, wholes, with_masks):
    """Return the parts of objects (left, top, right, bottom, label, score) that slices show."""
    boxes, scores, labels, corners, masks = [], [], [], [], []
    for rows, columns in slices:
        for left, top, right, bottom, label, score in wholes:
            box = [max(left, columns.start), max(top, rows.start)]
            box += [min(right, columns.stop), min(bottom, rows.stop)]
            if box[0] < box[2] and box[1] < box[3]:
                boxes.append(box)
                area = (box[2] - box[0]) * (box[3] - box[1])
                scores.append(score * area / ((right - left) * (bottom - top)))
                labels.append(label)
                corners.append((columns.start, rows.start))
                window = Window(slice(box[1], box[3]), slice(box[0], box[2]))
                masks.append((window, np.ones(window.size, bool)))
    arrays = np.array(boxes, float).reshape(-1, 4), np.array(scores), np.array(labels, int)
    return Objects(*arrays, masks if with_masks else None), np.array(corners).reshape(-1, 2)


def joined(wholes, side=100, overlap=20, with_masks=True):
    slices = [window for window, _ in slices_of(SIZE, side, overlap)]
    return join(*cut_by(slices, wholes, with_masks), slices, SIZE)


WHOLES = {
    'by a seam': [(60, 20, 130, 60, 0, 0.9)],
    'at a corner, by four slices': [(70, 70, 140, 150, 0, 0.9)],
    'a chain over all slices of a row': [(10, 30, 290, 50, 0, 0.9)],
}


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('overlap', [0, 4, 20])
@pytest.mark.parametrize('wholes', WHOLES.values(), ids=WHOLES)
def test_the_parts_of_an_object_become_one(wholes, overlap, with_masks):
    found = joined(wholes, 100, overlap, with_masks)
    assert found.cut > 1
    assert found.objects.boxes.tolist() == [list(wholes[0][:4])]
    assert not found.is_cut.any()
    left, top, right, bottom = wholes[0][:4]
    if with_masks:
        [(window, mask)] = found.objects.masks
        assert window == Window(slice(top, bottom), slice(left, right)) and mask.all()
    else:
        assert found.objects.masks is None
    assert 0 < found.objects.scores[0] <= 0.9  # the highest score of a part


def test_an_object_that_one_slice_shows_whole_takes_in_its_part_in_another_one():
    found = joined([(70, 20, 110, 60, 0, 0.9)])  # 80 to 180 shows most of it, 0 to 100 less
    assert found.objects.boxes.tolist() == [[70, 20, 110, 60]]
    found = joined([(82, 20, 110, 60, 0, 0.9)])
    assert found.objects.scores.tolist() == [0.9]


SEPARATE = {
    'side by side along the seam': [(60, 10, 100, 40, 0, 0.9), (100, 45, 140, 80, 0, 0.9)],
    'of two classes': [(60, 10, 100, 40, 0, 0.9), (100, 10, 140, 40, 1, 0.9)],
    'of other extents': [(60, 10, 100, 20, 0, 0.9), (100, 5, 140, 95, 0, 0.9)],
    'beyond a gap': [(60, 10, 90, 40, 0, 0.9), (110, 10, 140, 40, 0, 0.9)],
    'across a corner': [(60, 60, 100, 100, 0, 0.9), (100, 100, 140, 140, 0, 0.9)],
}


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('wholes', SEPARATE.values(), ids=SEPARATE)
def test_neighbors_stay_apart(wholes, with_masks):
    found = joined(wholes, 100, 0, with_masks)
    boxes = sorted(found.objects.boxes.tolist())
    assert boxes == sorted(list(map(float, whole[:4])) for whole in wholes)
    is_touching = [100 in (left, right) for left, _, right, _ in found.objects.boxes]
    assert found.is_cut.tolist() == is_touching


def test_parts_that_disagree_in_what_both_slices_show_stay_apart():
    slices = [window for window, _ in slices_of(SIZE, 100, 20)]
    boxes = np.array([[60.0, 10, 100, 40], [80, 30, 140, 60]])  # in the left and the right slice
    corners = np.array([[0, 0], [80, 0]])
    objects = Objects(boxes, np.array([0.9, 0.8]), np.zeros(2, int))
    assert len(join(objects, corners, slices, SIZE).objects) == 2
    boxes[1] = [80, 12, 140, 42]
    found = join(objects, corners, slices, SIZE)
    assert found.objects.boxes.tolist() == [[60, 10, 140, 42]]
    assert found.objects.scores.tolist() == [0.9] and found.corners.tolist() == [[0, 0]]


def test_an_object_is_joined_with_the_best_of_two_parts():
    slices = [window for window, _ in slices_of(SIZE, 100, 0)]
    boxes = np.array([[60.0, 10, 100, 50], [100, 12, 140, 50], [100, 22, 160, 52]])
    corners = np.array([[0, 0], [100, 0], [100, 0]])
    objects = Objects(boxes, np.array([0.5, 0.7, 0.9]), np.zeros(3, int))
    found = join(objects, corners, slices, SIZE)
    assert found.objects.boxes.tolist() == [[60, 10, 140, 50], [100, 22, 160, 52]]
    assert found.cut == 3 and found.is_cut.tolist() == [False, True]


def test_two_objects_of_one_slice_are_not_joined_through_their_neighbors():
    slices = [window for window, _ in slices_of(SIZE, 100, 0)]
    boxes = [[75, 20, 100, 60]]  # at the top left, half as high as the next one
    boxes += [[100, 20, 140, 100], [98, 100, 140, 160]]  # at the top right, and below it
    boxes += [[60, 100, 100, 160], [60, 62, 100, 100]]  # at the bottom left, and above it
    boxes = np.array(boxes, float)
    corners = np.array([[0, 0], [100, 0], [100, 100], [0, 100], [0, 0]])
    objects = Objects(boxes, np.linspace(0.9, 0.5, 5), np.zeros(5, int))
    found = join(objects, corners, slices, SIZE)
    assert found.objects.boxes.tolist() == [[75, 20, 100, 60], [60, 20, 140, 160]]
