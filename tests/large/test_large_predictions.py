"""Files of predictions for large images, read by GDAL and by the readers of their formats."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
import supervision
from helpers.processes import forked
from rasterio import features, warp
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rio_cogeo.cogeo import cog_validate

from xcit_mm.base.errors import UserError
from xcit_mm.base.files import is_disk_full
from xcit_mm.base.geometry import Window
from xcit_mm.large.maps.no_label import no_label
from xcit_mm.predict.large.large_predictions import LargeDetections, LargeSegmentation
from xcit_mm.predict.large.output_options import OutputOptions
from xcit_mm.predict.results import Detections, Segmentation
from xcit_mm.predict.write import label_polygons

CLASSES = 'field', 'wöod & meadow', 'water'
PALETTE = (230, 200, 60), (30, 140, 50), (40, 90, 200)
SIZE = 600, 1100
MAP = dict(crs=CRS.from_epsg(32633), transform=from_origin(500_000, 5_400_000, 0.5, 0.5))
FEET = dict(crs=CRS.from_epsg(2263), transform=from_origin(980_000, 200_000, 2, 2))
DEGREES = dict(crs=CRS.from_epsg(4326), transform=from_origin(7, 51, 1e-5, 1e-5))
MERCATOR = dict(crs=CRS.from_epsg(3857), transform=from_origin(1e6, 8_399_738, 1, 1))
OF_REGION = dict(transform=from_origin(300, 40, 2, -2))  # pixels of the full image
PLACES = {'map': MAP, 'pixels': {}, 'region': OF_REGION}


def scene_labels(size: tuple[int, int] = SIZE) -> np.ndarray:
    """Circles of two classes in a third one, without data at the left border."""
    y, x = np.mgrid[: size[0], : size[1]]
    labels = np.zeros(size, np.uint8)
    labels[(y % 150 - 75) ** 2 + (x % 170 - 85) ** 2 < 60**2] = 1
    labels[(y % 290 - 200) ** 2 + (x % 310 - 150) ** 2 < 50**2] = 2
    labels[:, : size[1] // 11] = 255
    return labels


def segmentation(**values) -> LargeSegmentation:
    labels = scene_labels()
    about = dict(
        image=np.full((*SIZE, 3), 120, np.uint8),
        labels=labels,
        classes=CLASSES,
        palette=PALETTE,
        size=SIZE,
        georeference=MAP,
        workspace=None,
        scores=np.where(labels == 255, 0, 200 + labels % 50).astype(np.uint8),
    )
    return LargeSegmentation(**about | values)


def detections(with_masks: bool, number: int = 3, **values) -> LargeDetections:
    boxes = np.array([[20, 4, 31, 15], [2.5, 3, 9, 40], [50, 50, 60, 70]], np.float32)
    ring = np.ones((11, 11), bool)
    ring[3:8, 2:5] = False
    masks = [
        (Window(slice(4, 15), slice(20, 31)), ring),
        (Window(slice(3, 40), slice(2, 9)), np.zeros((37, 7), bool)),
        (Window(slice(50, 70), slice(50, 60)), np.ones((20, 10), bool)),
    ]
    about = dict(
        image=np.full((*SIZE, 3), 120, np.uint8),
        boxes=boxes[:number],
        scores=np.array([0.9, 0.8, 0.3])[:number],
        labels=np.array([1, 0, 2])[:number],
        masks=masks[:number] if with_masks else None,
        classes=CLASSES,
        palette=PALETTE,
        size=SIZE,
        georeference=MAP,
        workspace=None,
    )
    return LargeDetections(**about | values)


def require_quiet(path: Path, *command: str) -> str:
    """Open a file with a program of GDAL, if it is installed, and refuse warnings."""
    if shutil.which(command[0]) is None:
        return ''
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, '')
    return done.stdout


@pytest.mark.parametrize('cog', [False, True])
@pytest.mark.parametrize('dtype', [np.uint8, np.int16])
def test_labels_and_scores_are_complete_geotiffs(cog, dtype, tmp_path):
    prediction = segmentation()
    gaps = prediction.labels == 255
    labels = prediction.labels.astype(dtype)
    labels[gaps] = no_label(dtype)
    prediction = replace(prediction, labels=labels)
    written = prediction.save(tmp_path, 'a', OutputOptions(cog=cog))
    assert written == dict(labels='labels/a.tif', scores='scores/a.tif')
    for name in ('labels', 'scores'):
        path = tmp_path / written[name]
        is_valid, wrong, warned = cog_validate(path, strict=True, quiet=True)
        assert wrong == warned == [] if cog else not is_valid
        said = require_quiet(path, 'gdalinfo', '-checksum')
        assert ('LAYOUT=COG' in said) == cog or not said
        with rasterio.open(path) as file:
            values = getattr(prediction, name)
            assert np.array_equal(file.read(1), values)
            assert (file.crs, file.transform) == (MAP['crs'], MAP['transform'])
            assert file.overviews(1) == [2]
            assert file.block_shapes == [(512, 512)]
            assert np.array_equal(file.dataset_mask() == 0, gaps)
            assert file.nodata == (no_label(dtype) if name == 'labels' else None)
            has_palette = name == 'labels' and dtype == np.uint8
            assert (file.colorinterp[0].name == 'palette') == has_palette
        with rasterio.open(path, overview_level=0) as file:
            reduced, mask = file.read(1), file.dataset_mask()
            assert np.array_equal(mask == 0, gaps[::2, ::2])
            four = values.reshape(300, 2, 550, 2)
            if name == 'labels':
                assert np.array_equal(reduced, four[:, 0, :, 0])
            else:
                mean = four.mean((1, 3))
                assert np.abs(reduced - mean)[mask > 0].max() <= 0.5


def test_the_table_of_classes_is_read_by_gdal(tmp_path):
    segmentation().save(tmp_path, 'a')
    said = require_quiet(tmp_path / 'labels/a.tif', 'gdalinfo')
    table = ElementTree.parse(tmp_path / 'labels/a.tif.aux.xml').getroot()[0][0]
    rows = [[cell.text for cell in row] for row in table.iter('Row')]
    expected = enumerate(zip(CLASSES, PALETTE, strict=True))
    assert rows == [[str(i), name, *map(str, color)] for i, (name, color) in expected]
    assert not said or 'GDALRasterAttributeTable' in said


@pytest.mark.parametrize('cog', [False, True])
def test_probabilities_of_8_bits_are_bands(cog, tmp_path):
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (*SIZE, 3), np.uint8)  # as it is computed
    prediction = segmentation(probabilities=np.moveaxis(stored, -1, 0))
    written = prediction.save(tmp_path, 'a', OutputOptions(cog=cog))
    path = tmp_path / written['probabilities']
    require_quiet(path, 'gdalinfo', '-checksum')
    with rasterio.open(path) as file:
        assert file.descriptions == CLASSES
        assert np.array_equal(np.moveaxis(file.read(), 0, -1), stored)
        assert np.array_equal(file.dataset_mask() == 0, prediction.labels == 255)
        assert {c.name for c in file.colorinterp} <= {'gray', 'undefined'}
        assert file.overviews(3) == [2]
        assert file.interleaving.name == 'band'  # one class can be read without the others


@pytest.mark.skipif(sys.version_info < (3, 11), reason='Zarr 3 has no release for Python 3.10')
@pytest.mark.parametrize('georeference', [MAP, {}], ids=['map', 'pixels'])
def test_probabilities_of_16_bits_are_a_zarr_array(georeference, tmp_path):
    import zarr

    values = np.random.default_rng(0).random((3, *SIZE)).astype(np.float16)
    values[:, :5] = np.nan
    prediction = segmentation(probabilities=values, georeference=georeference)
    for _ in range(2):  # an earlier file is replaced
        written = prediction.save(tmp_path, 'a')
    array = zarr.open_array(tmp_path / written['probabilities'], mode='r')
    assert (array.dtype, array.chunks) == (np.float16, (1, 512, 512))
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ('class', 'y', 'x')
    assert np.array_equal(array[:], values, equal_nan=True)
    assert array.attrs['classes'] == list(CLASSES)
    if georeference:
        assert CRS.from_wkt(array.attrs['crs']) == MAP['crs']
        assert rasterio.Affine(*array.attrs['transform']) == MAP['transform']
    assert {path.name for path in tmp_path.joinpath('probabilities').iterdir()} == {'a.zarr'}


def test_shares_and_pictures_leave_out_pixels_without_data():
    prediction = segmentation()
    valid = prediction.labels[prediction.labels != 255]
    expected = {i: (valid == i).mean() for i in range(3)}
    assert prediction.shares() == pytest.approx(expected)
    for labels in (prediction.labels, prediction.labels.astype(np.int8).astype(np.int16)):
        drawn = replace(prediction, labels=labels).draw()
        assert (drawn[: SIZE[0], : SIZE[1] // 11] == 120).all()
        assert (drawn[: SIZE[0], SIZE[1] // 11 :] != 120).any(-1).all()
    empty = replace(prediction, labels=np.full(SIZE, 255, np.uint8))
    assert empty.shares() == {} and (empty.draw()[: SIZE[0]] == 120).all()


@pytest.mark.parametrize('vectors', ['geojson', 'gpkg'])
@pytest.mark.parametrize('place', PLACES)
def test_polygons_drawn_again_are_the_labels(vectors, place, tmp_path):
    georeference = PLACES[place]
    prediction = segmentation(georeference=georeference)
    written = prediction.save(tmp_path, 'a', OutputOptions(vectors=vectors, polygons=True))
    path = tmp_path / written['polygons']
    said = require_quiet(path, 'ogrinfo', '-ro', '-al', '-so')
    about, _, outlines, values = pyogrio.raw.read(path, columns=['class', 'label', 'area'])
    assert not said or 'Layer name: polygons' in said
    assert about['geometry_type'] == 'Polygon'
    system = about['crs']
    if georeference is MAP:
        assert CRS.from_user_input(system) == MAP['crs']
    elif vectors == 'gpkg':  # GDAL takes coordinates in GeoJSON for degrees if it has no system
        assert 'Undefined Cartesian' in system
    outlines = shapely.from_wkb(outlines)
    names, labels, areas = values
    assert names.tolist() == [CLASSES[i] for i in labels]
    scale = 0.9996 if georeference is MAP else 1  # of UTM at its central meridian
    assert areas == pytest.approx(shapely.area(outlines) / scale**2)
    transform = georeference.get('transform', rasterio.Affine.identity())
    shapes = zip(outlines, labels.tolist(), strict=True)
    drawn = features.rasterize(shapes, SIZE, 255, transform=transform, dtype='uint8')
    assert np.array_equal(drawn, prediction.labels)


def area_on_the_ellipsoid(georeference, size):
    """Return the area of an image (H, W) in Lambert's projection, which keeps areas."""
    crs, transform = georeference['crs'], georeference['transform']
    (lon,), (lat,) = warp.transform(crs, 'EPSG:4326', [transform.c], [transform.f])
    columns, rows = np.array([0, size[1], size[1], 0]), np.array([0, 0, size[0], size[0]])
    equal_area = f'+proj=laea +lat_0={lat} +lon_0={lon} +datum=WGS84'
    corners = warp.transform(crs, equal_area, *(transform * (columns, rows)))
    return shapely.Polygon(zip(*corners, strict=True)).area


@pytest.mark.parametrize(
    ('georeference', 'unit'),
    [(MAP, None), (FEET, None), (DEGREES, None), (MERCATOR, None), ({}, 1), (OF_REGION, 4)],
    ids=['meters', 'feet', 'degrees', 'mercator', 'pixels', 'reduced pixels'],
)
def test_small_regions_are_merged_by_their_area_on_the_ground(georeference, unit, tmp_path):
    labels = np.zeros((40, 60), np.uint8)
    labels[3:7, 3:8], labels[20:26, 20:26] = 1, 2  # 20 and 36 pixels
    prediction = segmentation(
        labels=labels, scores=None, size=labels.shape, georeference=georeference
    )
    if unit is None:
        unit = area_on_the_ellipsoid(georeference, labels.shape) / labels.size
        areas = [count['square meters'] for count in prediction.counts()]
        assert areas == pytest.approx(np.bincount(labels.ravel(), minlength=3) * unit, rel=1e-5)
    options = OutputOptions(polygons=True, smallest_area=21 * unit, simplify=0.5)
    written = prediction.save(tmp_path, 'a', options)
    content = json.loads((tmp_path / written['polygons']).read_text())
    found = {f['properties']['class']: f['properties']['area'] for f in content['features']}
    assert found == pytest.approx({'field': (2400 - 36) * unit, 'water': 36 * unit}, rel=1e-5)
    assert [path.name for path in tmp_path.joinpath('polygons').iterdir()] == ['a.geojson']
    assert np.array_equal(prediction.labels, labels)


@pytest.mark.parametrize('with_masks', [False, True])
@pytest.mark.parametrize('place', PLACES)
def test_objects_in_both_formats_are_the_same(with_masks, place, tmp_path):
    prediction = detections(with_masks, georeference=PLACES[place])
    read = []
    for vectors in ('geojson', 'gpkg'):
        written = prediction.save(tmp_path, 'a', OutputOptions(vectors=vectors))
        path = tmp_path / written['objects']
        assert path.name == f'a.{vectors}'
        require_quiet(path, 'ogrinfo', '-ro', '-al')
        names = ['class', 'label', 'score', 'area']
        about, _, outlines, values = pyogrio.raw.read(path, columns=names)
        assert list(about['fields']) == names
        read.append([shapely.normalize(shapely.from_wkb(outlines)), *values])
    for first, second in zip(*read, strict=True):
        assert np.array_equal(first, second)
    outlines, classes, labels, scores, areas = read[0]
    assert classes.tolist() == [CLASSES[1], CLASSES[0], CLASSES[2]]
    assert labels.tolist() == [1, 0, 2] and scores.tolist() == [0.9, 0.8, 0.3]
    # Square meters, with the scale of UTM at its central meridian, or pixels of the full image.
    unit = {'map': 0.25 / 0.9996**2, 'pixels': 1, 'region': 4}[place]
    pixels = [121 - 15 if with_masks else 121, 6.5 * 37, 200]  # the second mask is empty
    assert areas == pytest.approx(np.array(pixels) * unit)
    assert shapely.is_valid(outlines).all()
    assert {shape.geom_type for shape in outlines} == {'MultiPolygon' if with_masks else 'Polygon'}
    _, _, _, colors = pyogrio.raw.read(tmp_path / 'objects/a.gpkg', columns=['color'])
    assert colors[0].tolist() == ['#1e8c32', '#e6c83c', '#285ac8']


def test_geojson_is_what_qupath_reads(tmp_path):
    detections(True, georeference={}).save(tmp_path, 'a')
    content = json.loads((tmp_path / 'objects/a.geojson').read_text())
    assert content['type'] == 'FeatureCollection' and 'crs' not in content
    properties = content['features'][0]['properties']
    assert properties['objectType'] == 'annotation'
    assert properties['classification'] == dict(name=CLASSES[1], color=[30, 140, 50])
    assert properties['color'] == [30, 140, 50]  # QuPath fails at text
    assert properties['measurements'] == dict(score=0.9, area=106.0)
    for feature in content['features']:
        shape = shapely.geometry.shape(feature['geometry'])
        for polygon in shape.geoms:  # as RFC 7946 says
            assert polygon.exterior.is_ccw
            assert not any(hole.is_ccw for hole in polygon.interiors)


@pytest.mark.parametrize('with_masks', [False, True])
@pytest.mark.parametrize('number', [0, 3])
def test_objects_go_to_other_tools(number, with_masks):
    prediction = detections(with_masks, number)
    theirs = prediction.to_supervision()
    assert np.array_equal(theirs.xyxy, prediction.boxes) and len(theirs) == number
    table, polygons = prediction.to_pandas(), prediction.to_polygons()
    assert table['name'].tolist() == [CLASSES[i] for i in prediction.labels]
    assert len(polygons) == number
    assert [found.score for found in prediction] == prediction.scores.tolist()
    annotations = prediction.to_coco(1)
    assert [a['category_name'] for a in annotations] == table['name'].tolist()
    assert [a['area'] for a in annotations] == table['area'].tolist()
    if number and with_masks:
        areas = [121 - 15, 0, 200]
        assert isinstance(theirs.mask, supervision.CompactMask)
        for found, polygon, (window, part) in zip(
            theirs.mask, polygons, prediction.masks, strict=True
        ):
            mask = np.zeros(SIZE, bool)
            mask[tuple(window)] = part
            assert np.array_equal(found, mask)
            assert polygon.is_empty or np.array_equal(features.rasterize([polygon], SIZE), mask)
        assert shapely.area(polygons).tolist() == areas == table['area'].tolist()
        picture = np.zeros((*SIZE, 3), np.uint8)
        back = Detections.from_supervision(theirs[theirs.confidence > 0.5], picture, CLASSES)
        assert back.masks.shape == (2, *SIZE) and back.areas.tolist() == areas[:2]
        assert prediction[0].mask is prediction.masks[0]


@pytest.mark.parametrize('dtype', [np.uint8, np.int16])
def test_classes_go_to_other_tools_without_pixels_without_data(dtype, monkeypatch):
    monkeypatch.setattr(label_polygons, 'BLOCK', 256)
    labels = scene_labels()
    gaps = labels == 255
    labels = labels.astype(dtype)
    labels[gaps] = no_label(dtype)
    prediction = segmentation(labels=labels, scores=None)
    polygons = prediction.to_polygons()
    assert list(polygons) == [0, 1, 2]
    drawn = features.rasterize([(p, label) for label, p in polygons.items()], SIZE, 255)
    assert np.array_equal(drawn, scene_labels())
    table = prediction.to_pandas()
    assert table['pixels'].tolist() == [(labels == i).sum() for i in range(3)]
    assert table['share'].sum() == pytest.approx(1)
    theirs = prediction.to_supervision()
    assert theirs.class_id.tolist() == [0, 1, 2]
    back = Segmentation.from_supervision(theirs, prediction.image, CLASSES)
    assert np.array_equal(back.labels == 3, gaps)
    assert np.array_equal(back.labels[~gaps], labels[~gaps])
    nothing = segmentation(labels=np.full(SIZE, no_label(dtype), dtype), scores=None)
    assert nothing.to_polygons() == {} and nothing.to_pandas()['share'].tolist() == [0, 0, 0]


@pytest.mark.parametrize('kind', ['labels', 'gpkg', 'zarr'])
def test_a_file_on_a_full_disk_is_not_left_behind(kind, tmp_path):
    if kind == 'zarr' and sys.version_info < (3, 11):
        pytest.skip('Zarr 3 has no release for Python 3.10')
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, SIZE, np.uint8)
    limit, options, name = 100_000, OutputOptions(), 'a.tif'
    prediction = segmentation(labels=labels, scores=None)
    if kind == 'gpkg':
        prediction, name = detections(False), 'a.gpkg'
        limit, options = 50_000, OutputOptions(vectors='gpkg')
    elif kind == 'zarr':
        labels = np.zeros(SIZE, np.uint8)  # they take less than the limit
        values = rng.random((3, *SIZE)).astype(np.float16)
        prediction = segmentation(labels=labels, scores=None, probabilities=values)
        name = 'a.zarr'

    def fails(rank: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sentence = rf'{name} cannot be written .*: make room on its disk'
        with pytest.raises(UserError, match=sentence) as raised:
            prediction.save(tmp_path / 'out', 'a', options)
        assert is_disk_full(raised.value)

    forked(1, fails)
    left = [path.name for path in (tmp_path / 'out').rglob('*') if path.is_file()]
    complete = ['a.tif', 'a.tif.aux.xml'] if kind == 'zarr' else []  # the labels
    assert sorted(left) == complete
    assert not any('unfinished' in path.name for path in (tmp_path / 'out').rglob('*'))
