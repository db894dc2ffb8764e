"""Pictures of predictions say what was found, where, and nothing else."""

import numpy as np
import pytest

from xcit_mm.inference import Detections, Segmentation

CLASSES = ('cat', 'dog', 'a class of a very long name that is wider than most pictures are')
PALETTE = ((255, 0, 0), (0, 200, 0), (0, 0, 255))
GREY = 100


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.uint8)


def objects(image: np.ndarray, boxes: list, labels: list, masks=None) -> Detections:
    scores = np.linspace(0.9, 0.5, len(boxes))
    return Detections(
        image, np.array(boxes, float), scores, np.array(labels), masks, CLASSES, PALETTE
    )


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(-1).sum())


@pytest.mark.parametrize('corner', [(2, 2), (2, 378), (578, 2), (578, 378), (-30, -30), (620, 420)])
def test_no_text_is_cut_off_by_the_border(corner):
    image = grey(400, 600)
    in_the_midst = objects(image, [(300, 200, 320, 220)], [0]).draw()
    left, top = corner
    at_the_border = objects(image, [(left, top, left + 20, top + 20)], [0]).draw()
    assert at_the_border.shape == image.shape
    # The white of the letters is all there.
    assert count(at_the_border, (255, 255, 255)) == count(in_the_midst, (255, 255, 255)) > 10


def test_a_name_that_is_wider_than_the_picture_is_written_smaller():
    picture = objects(grey(330, 330), [(100, 100, 200, 200)], [2]).draw()
    rows, columns = np.nonzero((picture == PALETTE[2]).all(-1))
    assert columns.min() >= 0 and columns.max() < 330
    assert rows.min() < 98  # the label, above the box


@pytest.mark.parametrize(
    ('size', 'drawn'),
    [((160, 200), (320, 400)), ((50, 70), (350, 490)), ((400, 500), (400, 500))],
)
def test_small_pictures_are_enlarged(size, drawn):
    image = grey(*size)
    mask = np.zeros((1, *size), bool)
    mask[0, 10:20, 30:40] = True
    picture = objects(image, [(30, 10, 40, 20)], [1], mask).draw()
    assert picture.shape[:2] == drawn
    factor = drawn[0] // size[0]
    assert not (picture[15 * factor, 35 * factor] == GREY).all()
    assert (picture[45 * factor, 60 * factor] == GREY).all()
    labels = np.zeros(size, np.uint8)
    assert Segmentation(image, labels, CLASSES, PALETTE).draw().shape[1] == drawn[1]
    assert (image == GREY).all()


def test_a_thin_image_is_not_enlarged_without_end():
    picture = objects(grey(2, 3000), [(0, 0, 9, 1)], [0]).draw()
    assert picture.shape == (2, 3000, 3)


def test_the_surest_object_is_on_top():
    masks = np.zeros((2, 400, 400), bool)
    masks[0, 100:200, 100:200] = masks[1, 50:250, 50:250] = True
    picture = objects(
        grey(400, 400), [(100, 100, 200, 200), (50, 50, 250, 250)], [0, 1], masks
    ).draw()
    red, green = picture[150, 150], picture[230, 150]
    assert red[0] > red[1] and green[1] > green[0]
    assert (picture[300, 300] == GREY).all()


def test_lines_grow_with_the_picture():
    def width(size: int) -> int:
        picture = objects(
            grey(size, size), [(size // 4, size // 2, size // 2, size - 9)], [0]
        ).draw()
        return count(picture[size * 3 // 4 : size * 3 // 4 + 1, : size // 3], PALETTE[0])

    assert width(400) == 2 and width(4000) == 10


def test_a_model_without_masks_has_boxes_without_masks():
    found = objects(grey(400, 400), [(100, 100, 200, 200)], [0])
    assert (found.draw()[150, 150] == GREY).all()
    [annotation] = found.to_coco(1)
    assert 'segmentation' not in annotation and annotation['area'] == 1e4


def segmentation() -> Segmentation:
    labels = np.zeros((400, 500), np.uint8)
    labels[:100] = 1
    return Segmentation(grey(400, 500), labels, CLASSES, PALETTE)


def test_the_legend_names_the_classes_that_occur():
    found = segmentation()
    assert found.shares() == {0: 0.75, 1: 0.25}
    picture = found.draw()
    above, legend = picture[:400], picture[400:]
    assert picture.shape[1] == 500 and 20 < len(legend) < 60
    assert count(above, PALETTE[0]) == 0  # it is blended with the image there
    assert count(legend, PALETTE[0]) > 50 and count(legend, PALETTE[1]) > 50
    assert count(legend, PALETTE[2]) == 0


def test_the_colours_are_as_opaque_as_is_asked():
    found = segmentation()
    assert (found.draw(opacity=0)[:400] == GREY).all()
    assert (found.draw(opacity=1)[0, 0] == PALETTE[1]).all()
    assert (found.draw(opacity=0.5)[0, 0] == [50, 150, 50]).all()


def test_a_legend_of_a_number_of_rows_is_of_one_size():
    found = segmentation()
    labels = np.arange(300, dtype=np.int16)[:, None].repeat(500, 1)
    labels = np.concatenate([labels, labels[:100]])
    many = Segmentation(grey(400, 500), labels, ('name',) * 300, ((9, 9, 9),) * 300)
    assert found.draw(legend_rows=3).shape == many.draw(legend_rows=3).shape
    assert many.draw().shape[0] > many.draw(legend_rows=3).shape[0]
