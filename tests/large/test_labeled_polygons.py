"""Polygons with classes: repaired, cut by windows, drawn as labels, and counted in cells."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import shapely
from rasterio.features import rasterize
from rasterio.transform import Affine
from shapely.geometry import mapping

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.labels.class_cells import count_cells
from xcit_mm.large.labels.label_windows import LabelWindows, open_labels
from xcit_mm.large.labels.labeled_polygons import (
    LabeledPolygons,
    read_polygons,
    repaired,
    without_holes,
)
from xcit_mm.large.labels.polygon_labels import PolygonLabels

CLASSES = ('field', 'road', 'water')
SIZE = 333, 401
IMAGE = Array(np.broadcast_to(np.uint8(0), (*SIZE, 3)), 'a.tif')
BOW_TIE = shapely.Polygon([(0, 0), (10, 10), (10, 0), (0, 10)])
# A square with an edge that runs back and forth, and a sliver that crosses itself.
SPIKE = shapely.Polygon([(0, 0), (20, 0), (20, 30), (20, 20), (0, 20)])
CORNERS = (20, 20), (9.9, 20.1), (10.1, 20.1), (0, 20)
SLIVER = shapely.Polygon([(0, 0), (20, 0), *CORNERS])


def some_polygons(number: int = 60) -> LabeledPolygons:
    """Overlapping triangles and rings, some of which reach beyond the image."""
    random, polygons = np.random.default_rng(1), []
    for i in range(number):
        corners = random.uniform((-50, -50), (SIZE[1] + 50, SIZE[0] + 50), (3, 2))
        shape = shapely.Polygon(corners)
        if i % 3 == 0:
            shape = shape.buffer(9) - shape.buffer(4)
        polygons.append((shape, i % len(CLASSES), i % 7 == 0))
    return LabeledPolygons.within(SIZE, polygons)


def labels_of(polygons: LabeledPolygons, outside: int = 255) -> PolygonLabels:
    return PolygonLabels(Path('a.geojson'), SIZE, polygons, outside, ignored=255)


@pytest.mark.parametrize(('tile', 'outside'), [((1, 500), 0), ((37, 53), 255)])
def test_windows_of_labels_are_parts_of_the_whole_drawing(tile, outside):
    polygons = some_polygons()
    order = np.argsort(np.where(polygons.are_ignored, 255, polygons.labels), kind='stable')
    values = np.where(polygons.are_ignored, 255, polygons.labels)
    pairs = [(polygons.shapes[i], int(values[i])) for i in order]
    expected = rasterize(pairs, out_shape=SIZE, fill=outside, dtype='uint8')
    assert {0, 1, 2, 255} <= {*np.unique(expected)}
    source = pickle.loads(pickle.dumps(labels_of(polygons, outside)))
    for window in tiles(whole(SIZE), tile):
        assert np.array_equal(source.read(window)[..., 0], expected[tuple(window)])


def test_edges_through_centers_of_pixels_are_drawn_alike_in_all_windows():
    step, random, polygons = 0.25, np.random.default_rng(0), []
    for i in range(150):  # stars with a hole, or in two parts
        angles = np.sort(random.random(random.integers(3, 40))) * 2 * np.pi
        middle, reach = random.uniform(0, SIZE[::-1]), random.uniform(0.2, 1, (len(angles), 1))
        points = middle + 99 * reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        points = np.round(points / step) * step
        shape = shapely.Polygon(points)
        if shape.is_valid and shape.area:
            shape -= shapely.box(*middle.round(), *middle.round() + np.array([9, 9 + i % 2 * 200]))
            shape -= shapely.box(*middle.round() - (0, i % 2 * 200), *middle.round() + 9)
            polygons.append((shape, random.integers(3), False))
    polygons = LabeledPolygons(*map(np.array, zip(*polygons, strict=True)))
    assert {3, 6} == {*shapely.get_type_id(polygons.shapes).tolist()}
    source = labels_of(polygons)
    order = np.argsort(polygons.labels, kind='stable')
    shapes = shapely.transform(polygons.shapes[order], lambda xy: np.round(xy * 2**16) / 2**16)
    pairs = zip(shapes, polygons.labels[order].tolist(), strict=True)
    expected = rasterize(pairs, out_shape=SIZE, fill=255, dtype='uint8')
    small = tiles(Window(slice(90, 110), slice(0, SIZE[1])), (1, 7))
    for window in [*tiles(whole(SIZE), (23, 31)), *small]:
        assert np.array_equal(source.read(window)[..., 0], expected[tuple(window)])


@pytest.mark.parametrize('window', [(17, 120, 40, 99), (0, 333, 0, 401), (300, 333, 350, 401)])
def test_objects_of_a_window_are_the_parts_inside(window):
    polygons = some_polygons()
    window = Window(slice(*window[:2]), slice(*window[2:]))
    top, left = window.rows.start, window.columns.start
    found = polygons.objects(window, min_visible=0.5)
    inside = shapely.box(left, top, window.columns.stop, window.rows.stop)
    expected = [i for i, s in enumerate(polygons.shapes) if (s & inside).area > 0]
    assert len(found) == len(expected)
    ignored = 0
    for instance, i in zip(found, expected, strict=True):
        part = shapely.affinity.translate(polygons.shapes[i] & inside, -left, -top)
        outlines = [shapely.Polygon(np.reshape(ring, (-1, 2))) for ring in instance['mask']]
        assert np.allclose(instance['bbox'], part.bounds)
        assert shapely.union_all(outlines).symmetric_difference(part).area < 1e-6
        assert instance['bbox_label'] == polygons.labels[i]
        is_cut = part.area < 0.5 * polygons.shapes[i].area
        assert instance['ignore_flag'] == (is_cut or polygons.are_ignored[i])
        ignored += is_cut
    assert ignored or window.size == SIZE


@pytest.mark.parametrize('shape', [SPIKE, SLIVER], ids=['spike', 'sliver'])
def test_polygons_are_repaired_if_they_keep_their_area(shape):
    assert not shape.is_valid
    whole_shape = repaired(shape, 'a')
    assert whole_shape.is_valid
    assert whole_shape.area == pytest.approx(shape.area, rel=1e-3)


def test_holes_are_cut_without_a_change_of_the_area():
    shape = shapely.box(0, 0, 50, 40)
    for x in range(5, 45, 10):
        shape -= shapely.box(x, 10, x + 5, 20)
    parts = [*without_holes(shape)]
    assert not any(part.interiors for part in parts)
    assert shapely.union_all(parts).equals(shape)


def write(path: Path, *features: tuple[object, dict | None], **members) -> Path:
    listed = [
        dict(type='Feature', properties=properties, geometry=mapping(shape))
        for shape, properties in features
    ]
    path.write_text(json.dumps(dict(type='FeatureCollection', features=listed, **members)))
    return path


def test_map_coordinates_become_pixels(tmp_path):
    transform = Affine(0.5, 0.1, 5e5, 0.1, -0.5, 5e6)  # a rotated raster
    image = Array(np.zeros((*SIZE, 3), np.uint8), 'a.tif')
    image.georeference = dict(crs=rasterio.CRS.from_epsg(32632), transform=transform)
    shapes = some_polygons().shapes[:5]
    on_map = [shapely.transform(s, lambda p: np.stack(transform @ p.T[:2], axis=1)) for s in shapes]
    path = write(tmp_path / 'a.geojson', *((s, {'kind': 'road'}) for s in on_map))
    found = read_polygons(path, image, CLASSES, 'kind')
    assert found.labels.tolist() == [1] * 5
    for shape, expected in zip(found.shapes, shapes, strict=True):
        assert shape.symmetric_difference(expected).area < 1e-3


REFUSED = {
    'no property': (
        [(shapely.box(0, 0, 9, 9), {'kind': 'road', 'n': 1})],
        r"feature 1 has no property 'class' with the name of its class: set class_property of the "
        r'dataset to one of its properties \(kind, n\)',
    ),
    'class': (
        [(shapely.box(0, 0, 9, 9), {'class': 'field'}), (BOW_TIE, {'class': 'roads'})],
        r"feature 2 has the class 'roads', but the config has field, road, water: correct it, or "
        r'set metainfo=dict\(classes=\.\.\.\); did you mean road\?',
    ),
    'bow tie': (
        [(BOW_TIE, {'class': 'field'})],
        r'feature 1 is not a valid polygon \(Self-intersection\[5 5\]\), and its repair changes '
        'its area from 0 to 50 pixels: correct or remove it',
    ),
    'elsewhere': (
        [(shapely.box(5e5, 5e6, 6e5, 6e6), {'class': 'field'})],
        'none of its 1 polygons overlaps a.tif: the coordinates, for which the file names no '
        'system, may belong to another reference system or to another image',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_polygons_that_cannot_be_used_are_refused_in_one_sentence(tmp_path, case):
    features, message = REFUSED[case]
    path = write(tmp_path / 'a.geojson', *features)
    with pytest.raises(UserError, match=message) as refused:
        read_polygons(path, IMAGE, CLASSES, 'class')
    assert str(refused.value).startswith(f'{path}: ')


def test_a_file_without_features_has_no_polygons(tmp_path):
    found = read_polygons(write(tmp_path / 'a.geojson'), IMAGE, CLASSES, 'class')
    assert len(found.shapes) == len(found.labels) == len(found.are_ignored) == 0
    assert found.objects(whole(SIZE), min_visible=0) == []
    assert (labels_of(found).read(whole(SIZE)) == 255).all()


@pytest.mark.parametrize('rows', [None, 7], ids=['tiles', 'strips'])
@pytest.mark.parametrize('size', [(333, 401), (128, 129), (5, 3)])
def test_the_pixels_of_each_class_are_counted_in_each_cell(tmp_path, size, rows):
    labels = np.random.default_rng(0).choice([0, 2, 3, 255], size, p=[0.9, 0.04, 0.01, 0.05])
    labels[: size[0] // 2, : size[1] // 2] = 0
    path = tmp_path / 'a.tif'
    options = dict(height=size[0], width=size[1], count=1, dtype='uint8')
    if rows:
        options['blockysize'] = rows
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(labels.astype(np.uint8), 1)
    image = Array(np.broadcast_to(np.uint8(0), (*size, 3)), 'a.tif')
    cells = count_cells(open_labels(str(path), image), 4)
    assert cells.counts.min() > 0 and np.array_equal(cells.classes, np.sort(cells.classes))
    assert 1 not in cells.classes
    for label, cell, count in zip(cells.classes, cells.cells, cells.counts, strict=True):
        assert np.sum(labels[tuple(cells.window(cell, size))] == label) == count
    assert cells.counts.sum() == np.sum(labels != 255)


def test_polygons_that_touch_a_window_are_not_in_it():
    polygons = LabeledPolygons.within(SIZE, [(shapely.box(10, 10, 20, 20), 0, False)])
    assert not polygons.objects(Window(slice(0, 10), slice(0, 30)), min_visible=0)
    assert len(polygons.objects(Window(slice(0, 11), slice(0, 30)), min_visible=0)) == 1


def test_polygons_are_counted_like_the_image_of_their_labels():
    source = labels_of(some_polygons(), outside=1)
    image = Array(source.read(whole(SIZE)), 'a.npy')
    first, second = (count_cells(LabelWindows(s), len(CLASSES)) for s in (source, image))
    for expected, value in zip(first, second, strict=True):
        assert np.array_equal(expected, value)
