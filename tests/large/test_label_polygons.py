"""Polygons of classes against the labels they are made from."""

import cv2
import numpy as np
import pytest
import shapely
from rasterio import features

from xcit_mm.predict.write import label_polygons as module
from xcit_mm.predict.write.label_polygons import label_polygons, without_small_regions

NODATA = 255


def smooth(size: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Labels of four classes in regions of some pixels, with a corner without data."""
    noise = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    labels = np.digitize(cv2.GaussianBlur(noise, (0, 0), 3), [-0.05, 0, 0.05]).astype(np.uint8)
    labels[: size[0] // 4, : size[1] // 3] = NODATA
    return labels


def noise(size: tuple[int, int], classes: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, size, np.uint8)
    labels[rng.random(size) < 0.1] = NODATA
    return labels


def polygons_of(labels: np.ndarray, simplify: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    parts = list(label_polygons(labels, NODATA, simplify))
    outlines, values, areas = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ('outlines', 'labels', 'areas')
    )
    assert np.array_equal(areas, shapely.area(outlines))
    return outlines, values


def require_coverage(outlines: np.ndarray) -> None:
    assert {shape.geom_type for shape in outlines} <= {'Polygon'}
    assert shapely.is_valid(outlines).all()
    assert shapely.coverage_is_valid(outlines)


@pytest.mark.parametrize('block', [7, 1000])
@pytest.mark.parametrize(
    'labels',
    [
        smooth((61, 85)),
        noise((37, 53), 2),
        noise((64, 64), 5),
        noise((1, 50), 3),
        noise((33, 1), 2),
        np.ones((40, 41), np.uint8),
        smooth((40, 41)).astype(np.int16),
    ],
    ids=['regions', 'two', 'five', 'row', 'column', 'one', 'int16'],
)
def test_polygons_drawn_again_are_the_labels(block, labels, monkeypatch):
    monkeypatch.setattr(module, 'BLOCK', block)
    outlines, values = polygons_of(labels)
    require_coverage(outlines)
    drawn = features.rasterize(
        zip(outlines, values.tolist(), strict=True), labels.shape, NODATA, dtype='int16'
    )
    assert np.array_equal(drawn, labels)
    shapes = [value for _, value in features.shapes(labels) if value != NODATA]
    assert sorted(values.tolist()) == sorted(shapes)  # one polygon for each region
    assert shapely.area(outlines).sum() == (labels != NODATA).sum()


@pytest.mark.parametrize('block', [37, 1000])
def test_simplified_polygons_leave_no_gaps(block, monkeypatch):
    monkeypatch.setattr(module, 'BLOCK', block)
    labels = smooth((90, 120))
    labels[labels == NODATA] = 0
    exact, values = polygons_of(labels)
    outlines, simplified_values = polygons_of(labels, 2.0)
    require_coverage(outlines)
    assert np.array_equal(values, simplified_values)
    assert shapely.equals(shapely.union_all(outlines), shapely.box(0, 0, 120, 90))
    assert shapely.area(outlines).sum() == 90 * 120
    corners = shapely.get_num_coordinates(outlines).sum()
    assert corners < 0.6 * shapely.get_num_coordinates(exact).sum()
    deviation = shapely.area(shapely.symmetric_difference(exact, outlines)).sum()
    assert 0 < deviation < 0.15 * labels.size


def test_borders_of_pixels_without_data_are_simplified():
    labels = np.zeros((40, 40), np.uint8)
    labels[np.tri(40, dtype=bool)] = NODATA  # a staircase
    exact, _ = polygons_of(labels)
    outlines, _ = polygons_of(labels, 1.0)
    assert shapely.get_num_coordinates(exact[0]) > 70
    assert shapely.get_num_coordinates(outlines[0]) < 10


@pytest.mark.parametrize('pixels', [3, 9])
def test_small_regions_get_the_class_around_them(pixels, tmp_path):
    labels = np.zeros((30, 40), np.uint8)
    labels[:, 20:] = 1
    labels[5:7, 5:7] = 2  # 4 pixels within class 0
    labels[20, 30] = 3
    labels[:, 38:] = NODATA
    labels[10, 39] = 2  # has only pixels without data around it
    with without_small_regions(labels, pixels, NODATA, tmp_path) as merged:
        expected = labels.copy()
        expected[20, 30] = 1
        if pixels > 4:
            expected[5:7, 5:7] = 0
        assert np.array_equal(merged, expected)
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
