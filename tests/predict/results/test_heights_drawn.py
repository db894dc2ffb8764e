"""Pictures of heights, and the steps between the parts of a prediction."""

import numpy as np
import pytest

from xcit_mm.predict.results import Heights
from xcit_mm.predict.results.seams import largest_steps

IMAGE = np.full((400, 330, 3), 100, np.uint8)
VIOLET, YELLOW = (68, 1, 84), (253, 231, 37)  # the ends of viridis


def test_the_lowest_and_the_highest_height_have_the_ends_of_the_scale():
    values = np.full((400, 330), 3, np.float32)
    values[0, 0], values[-1, -1], values[5, 5] = -2, 8, np.nan
    heights = Heights(IMAGE, values)
    assert heights.limits == (-2, 8)
    picture = heights.draw(opacity=1)
    assert picture.shape[1] == 330 and picture.shape[0] > 400
    assert np.abs(picture[0, 0] - np.array(VIOLET)).max() <= 1
    assert np.abs(picture[399, 329] - np.array(YELLOW)).max() <= 1
    assert tuple(picture[5, 5]) == (100, 100, 100)
    wider = heights.draw(opacity=1, limits=(-100, 8))
    assert np.abs(wider[0, 0] - np.array(VIOLET)).max() > 50
    blended = heights.draw(opacity=0.5)[0, 0]
    assert np.abs(blended - (np.array(VIOLET) + 100) / 2).max() <= 1


@pytest.mark.parametrize('value', [np.nan, 4.0])
def test_heights_without_a_range_are_drawn(value):
    heights = Heights(IMAGE[:20, :30], np.full((20, 30), value, np.float32))
    assert heights.draw().shape[1] % 30 == 0  # enlarged


def test_a_false_step_is_the_distance_from_what_the_labels_allow():
    heights = np.array([[0, 0, 10, 10, 0, np.nan, 5]])
    for predicted, at_borders, inside in (
        ([0, 0, 10, 10, 0, 0, 5], 0, 0),  # as the labels
        ([0, 0, 6, 10, 0, 0, 5], 0, 4),  # blurred: the wall is no false step, what follows is
        ([0, 0, 13, 13, 3, 0, 5], 3, 0),  # too high a wall
        ([0, 0, -2, -2, 0, 0, 5], 2, 2),  # a pit in place of a tower
        ([0, 0, 10, 10, 0, 99, 5], 0, 0),  # next to a pixel without a label
    ):
        steps = largest_steps(np.array([predicted], float), heights, (), (2,))
        assert steps == (at_borders, inside), predicted


def test_borders_of_rows_and_of_columns_count():
    predicted = np.zeros((6, 5))
    predicted[4:] += 2
    predicted[:, 3:] -= 7
    zeros = np.zeros((6, 5))
    assert largest_steps(predicted, zeros, (4,), (3,)) == (7, 0)
    assert largest_steps(predicted, zeros, (4,), ()) == (2, 7)
    assert largest_steps(predicted, zeros, (), ()) == (0, 7)
