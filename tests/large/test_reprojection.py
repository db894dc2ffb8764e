"""Polygons in other reference systems, compared with pixels whose centers rasterio converts."""

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
from rasterio import Affine
from rasterio.crs import CRS
from rasterio.warp import transform
from shapely.geometry import mapping

from xcit_mm import UserError
from xcit_mm.base.geometry import whole
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.labels.labeled_polygons import read_polygons
from xcit_mm.large.labels.masks import polygons_of

SIZE = 160, 240
DEGREES, UTM, MERCATOR, POLAR = 'EPSG:4326', 'EPSG:32760', 'EPSG:3857', 'EPSG:3031'
SCENES = {
    'beyond 180': (DEGREES, Affine(0.002, 0, 179.8, 0, -0.002, -16)),
    'before -180': (DEGREES, Affine(0.002, 0, -180.2, 0, -0.002, -16)),
    'UTM': (UTM, Affine(220, 0, 797_900, 0, -220, 8_229_000)),
    'Mercator': (MERCATOR, Affine(222.6, 0, 20_015_100, 0, -222.6, -1_804_700)),
}
BOX = shapely.box(179.9, -16.2, 180.05, -16.05)
EAST, WEST = shapely.box(179.9, -16.2, 180, -16.05), shapely.box(-180, -16.2, -179.95, -16.05)
POLYGONS = {
    'UTM': (UTM, shapely.box(810_000, 8_205_000, 826_000, 8_222_000)),
    'degrees': (DEGREES, BOX),
    'RFC 7946': (DEGREES, shapely.MultiPolygon([EAST, WEST])),
    'no turn': (DEGREES, shapely.transform(BOX, lambda p: np.where(p > 180, p - 360, p))),
    'Mercator': (MERCATOR, shapely.box(2.0026e7, -1.83e6, 2.0043e7, -1.81e6)),
}


def scene(crs: str, place: Affine) -> Array:
    image = Array(np.zeros((*SIZE, 3), np.uint8), 'scene.tif')
    image.georeference = dict(crs=CRS.from_user_input(crs), transform=place)
    return image


def written(path: Path, crs: str, polygon) -> Path:
    feature = dict(type='Feature', properties={'class': 'a'}, geometry=mapping(polygon))
    member = dict(type='name', properties=dict(name=crs))
    content = dict(type='FeatureCollection', crs=member, features=[feature])
    path.write_text(json.dumps(content))
    return path


def inside(image: Array, crs: str, polygon, east_of: float | None = None) -> np.ndarray:
    """Return which centers of pixels are in a polygon, in its own system."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    points = image.georeference['transform'] * (columns.ravel(), rows.ravel())
    x, y = map(np.array, transform(image.georeference['crs'], crs, *points))
    if east_of is not None:  # the polygon is continuous across 180 degrees
        x = np.where(x < east_of, x + 360 * (111_319.49079327358 if east_of > 180 else 1), x)
    return shapely.contains_xy(polygon, x, y).reshape(SIZE)


@pytest.mark.parametrize('of_polygon', POLYGONS)
@pytest.mark.parametrize('of_scene', SCENES)
def test_regions_and_labels_are_whole_across_180_degrees(of_scene, of_polygon, tmp_path):
    image, (crs, polygon) = scene(*SCENES[of_scene]), POLYGONS[of_polygon]
    path = written(tmp_path / 'a.geojson', crs, polygon)
    true = polygon if crs != DEGREES else BOX
    expected = inside(image, crs, true, {DEGREES: 0, MERCATOR: 181}.get(crs))
    assert expected.sum() > 2000
    assert (polygons_of(path, image).read(whole(SIZE)) != expected).sum() < 0.002 * expected.sum()
    (shape,) = read_polygons(path, image, ('a',), 'class').shapes
    assert shape.area == pytest.approx(expected.sum(), rel=0.01)


def test_sides_that_are_straight_in_the_file_bend_on_the_map(tmp_path):
    image = scene('EPSG:32632', Affine(300, 0, 480_000, 0, -300, 6_700_000))
    polygon = shapely.box(8.8, 60.1, 9.9, 60.38)
    path = written(tmp_path / 'a.geojson', DEGREES, polygon)
    found, expected = polygons_of(path, image).read(whole(SIZE)), inside(image, DEGREES, polygon)
    assert (found != expected).sum() <= 2


def test_a_polygon_around_a_pole_is_refused_in_degrees(tmp_path):
    image = scene(DEGREES, Affine(1, 0, -120, 0, -0.5, -10))
    path = written(tmp_path / 'a.geojson', POLAR, shapely.box(-1e6, -1e6, 1e6, 1e6))
    with pytest.raises(UserError, match=r'EPSG:4326 .*a polygon surrounds a pole'):
        polygons_of(path, image)


WORLD = shapely.box(-180, -90, 180, 90)
LARGE = {
    'world': WORLD,
    'strip': shapely.box(-60, -90, 9.1, 90),
    'with a hole': WORLD - shapely.box(8.9, 60.15, 9.3, 60.25),
    'country': shapely.box(4.1, 58, 9.05, 71.2),
}
NEIGHBORS = {
    'UTM': ('EPSG:32632', Affine(300, 0, 480_000, 0, -300, 6_700_000)),
    'across 180': (UTM, SCENES['UTM'][1]),
    'Mercator': (MERCATOR, Affine(300, 0, 990_000, 0, -300, 8_450_000)),
    'south': ('EPSG:32733', Affine(30, 0, 480_000, 0, -30, 6_700_000)),
}


@pytest.mark.parametrize('of_polygon', LARGE)
@pytest.mark.parametrize('of_scene', NEIGHBORS)
def test_polygons_as_large_as_a_country_or_the_world_are_cut(of_scene, of_polygon, tmp_path):
    image, polygon = scene(*NEIGHBORS[of_scene]), LARGE[of_polygon]
    path = written(tmp_path / 'a.geojson', DEGREES, polygon)
    expected = inside(image, DEGREES, polygon)
    if not expected.any():
        with pytest.raises(UserError, match='none of its 1 polygons overlaps'):
            read_polygons(path, image, ('a',), 'class')
        return
    assert (polygons_of(path, image).read(whole(SIZE)) != expected).sum() <= 0.001 * expected.size
    (shape,) = read_polygons(path, image, ('a',), 'class').shapes
    assert shape.area == pytest.approx(expected.sum(), rel=0.005)


def test_polygons_on_the_other_side_of_the_world_are_left_out(tmp_path):
    image = scene(*NEIGHBORS['UTM'])
    path = written(tmp_path / 'a.geojson', DEGREES, shapely.box(8.8, 60.1, 9.9, 60.38))
    content = json.loads(path.read_text())
    for west in range(-180, 180, 20):
        if not -20 < west < 10:
            far = mapping(shapely.box(west, -60, west + 20, 80))
            content['features'].append(content['features'][0] | dict(geometry=far))
    expected = polygons_of(path, image).read(whole(SIZE))
    path.write_text(json.dumps(content))
    assert np.array_equal(polygons_of(path, image).read(whole(SIZE)), expected)
    assert len(read_polygons(path, image, ('a',), 'class').shapes) == 1
