"""The part of a scene that is predicted: regions, masks and tissue."""

import json
from pathlib import Path

import numpy as np
import openslide
import pytest
import rasterio.transform
import rasterio.warp
import shapely
import tifffile
from helpers.tiff import write_tiff
from PIL import Image
from rasterio import Affine
from shapely.geometry import mapping

from xcit_mm.base.errors import ArgumentError, UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.predict.large.open_scene import Scene, SceneOptions, open_scene

SIZE = 120, 200
CRS = 'EPSG:32633'
PLACE = Affine(0.5, 0, 500_000, 0, -0.5, 5_400_000)  # pixels of half a meter


@pytest.fixture(scope='module')
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 255, (*SIZE, 3), np.uint8)


@pytest.fixture(scope='module')
def on_map(pixels, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('scenes') / 'scene.tif'
    write_tiff(path, pixels, crs=CRS, transform=PLACE)
    return path


def write_polygons(path: Path, *polygons, crs: str | None = None) -> Path:
    features = [dict(type='Feature', properties={}, geometry=mapping(p)) for p in polygons]
    content = dict(type='FeatureCollection', features=features)
    if crs is not None:
        content['crs'] = dict(type='name', properties=dict(name=crs))
    path.write_text(json.dumps(content))
    return path


def opened(image, **options) -> Scene:
    return open_scene(image, None, 3, SceneOptions(**options))


def has_data(scene: Scene) -> np.ndarray:
    """Return which pixels of a scene have data, read in small windows."""
    valid = np.ones(scene.source.shape[:2], bool)
    for window in tiles(whole(valid.shape), (17, 23)):
        part = scene.source.valid(window)
        valid[tuple(window)] = True if part is None else part
    return valid


def test_a_window_in_pixels(pixels, on_map):
    for image in (pixels, on_map):
        scene = opened(image, region=(30, 20, 150, 95))
        assert scene.source.shape == (75, 120, 3)
        assert scene.full_size == SIZE
        assert scene.window == Window(slice(20, 95), slice(30, 150))
        inner = Window(slice(5, 40), slice(7, 30))
        assert np.array_equal(scene.source.read(inner), pixels[25:60, 37:60])
        assert has_data(scene).all()
    assert scene.georeference['transform'] * (0, 0) == PLACE * (30, 20)
    assert scene.full_georeference['transform'].almost_equals(PLACE)
    assert opened(pixels, region=(30, 20, 150, 95)).georeference == dict(
        transform=Affine.translation(30, 20)
    )


def test_a_region_at_a_resolution(on_map):
    scene = opened(on_map, resolution=1.0, region=(30, 20, 150, 95))
    assert scene.source.shape[:2] == (38, 60)
    assert scene.scale == (2, 2)
    assert scene.window.columns == slice(30, 150)
    assert scene.georeference['transform'] * (0, 0) == PLACE * (30, 20)
    assert scene.full_georeference['transform'].almost_equals(PLACE)


def test_a_window_outside_the_image_is_named(pixels):
    with pytest.raises(UserError, match='is not a window of the image of 200x120 pixels'):
        opened(pixels, region=(30, 20, 201, 95))


CIRCLE = shapely.Point(100, 60).buffer(40)  # in pixels
ISLAND = shapely.box(10, 10, 25, 20)


def in_circle() -> np.ndarray:
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    return shapely.contains_xy(shapely.union_all([CIRCLE, ISLAND]), x, y)


def placed(polygon, transform: Affine = PLACE):
    return shapely.transform(polygon, lambda p: np.stack(transform * p.T, 1))


def in_degrees(polygon):
    return shapely.geometry.shape(rasterio.warp.transform_geom(CRS, 'EPSG:4326', mapping(polygon)))


def test_polygons_in_pixels_map_coordinates_and_degrees(pixels, on_map, tmp_path):
    expected = in_circle()
    window = Window(*(slice(i.min(), i.max() + 1) for i in np.nonzero(expected)))
    on_ground = [placed(p) for p in (CIRCLE, ISLAND)]
    degrees = [in_degrees(p) for p in on_ground]
    cases = [
        (pixels, write_polygons(tmp_path / 'pixels.json', CIRCLE, ISLAND)),
        (on_map, write_polygons(tmp_path / 'map.json', *on_ground)),
        (on_map, write_polygons(tmp_path / 'named.json', *on_ground, crs=CRS)),
        (on_map, write_polygons(tmp_path / 'degrees.json', *degrees)),
        (on_map, write_polygons(tmp_path / 'wgs.json', *degrees, crs='EPSG:4326')),
    ]
    for image, path in cases:
        scene = opened(image, region=path)
        found = np.zeros(SIZE, bool)
        found[tuple(scene.window)] = has_data(scene)
        assert (found != expected).mean() < (1e-3 if 'degrees' in path.name else 2e-3), path
        rows, columns = scene.window
        assert rows.start <= window.rows.start and rows.stop >= window.rows.stop
        assert columns.stop - columns.start <= 200


# A slide of Leica: 160x320 pixels of 500 nm that begin at row 120 and column 200 of a larger glass.
SCN = (
    '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
    '<collection name="c" sizeX="300000" sizeY="200000"><image name="i"><creationDate>2020-01-01T'
    '00:00:00Z</creationDate><device model="m" version="1"/><pixels sizeX="320" sizeY="160">'
    '<dimension sizeX="320" sizeY="160" r="0" ifd="0"/><dimension sizeX="160" sizeY="80" r="1" '
    'ifd="1"/></pixels><view sizeX="160000" sizeY="80000" offsetX="100000" offsetY="60000" '
    'spacingZ="0"/><scanSettings><objectiveSettings><objective>20</objective></objectiveSettings>'
    '<illuminationSettings><numericalAperture>0.4</numericalAperture><illuminationSource>'
    'brightfield</illuminationSource></illuminationSettings></scanSettings></image></collection>'
    '</scn>'
)


@pytest.mark.parametrize('level', [0, 1])
def test_coordinates_of_a_slide_begin_at_its_bounds_as_in_qupath(level, tmp_path):
    glass = np.random.default_rng(1).integers(0, 200, (160, 320, 3), np.uint8)
    options = dict(tile=(64, 64), photometric='rgb', metadata=None, compression='zlib')
    options |= dict(resolution=(20000, 20000), resolutionunit='CENTIMETER')
    with tifffile.TiffWriter(tmp_path / 'a.scn', bigtiff=True) as file:
        file.write(glass, description=SCN, **options)
        file.write(np.ascontiguousarray(glass[::2, ::2]), subfiletype=1, **options)
    slide = openslide.OpenSlide(tmp_path / 'a.scn')
    corner = [int(slide.properties[f'openslide.bounds-{axis}']) for axis in 'xy']
    assert corner == [200, 120] and slide.level_count == 2
    region = write_polygons(tmp_path / 'a.json', shapely.box(12, 24, 112, 84))  # as QuPath exports
    scene = opened(tmp_path / 'a.scn', region=region, level=level)
    shown = scene.source.read(whole(scene.source.shape[:2]))[has_data(scene)]
    step = 2**level
    assert np.array_equal(shown, glass[24:84:step, 12:112:step].reshape(-1, 3))
    # Objects have coordinates of the full image; what is written for QuPath begins at the bounds.
    assert scene.full_georeference['transform'] * (212, 144) == pytest.approx((12, 24))
    left, top = scene.window.columns.start, scene.window.rows.start
    assert scene.georeference['transform'] * (0, 0) == pytest.approx((left - 200, top - 120))


def test_a_mask_of_the_same_image(pixels, on_map, tmp_path):
    mask = in_circle()
    path = write_tiff(tmp_path / 'mask.tif', mask.astype(np.uint8) * 255)
    for image in (pixels, on_map):
        assert np.array_equal(has_data(opened(image, mask=path)), mask)
    small = write_tiff(tmp_path / 'small.tif', mask[::10, ::10].astype(np.uint8))
    found = has_data(opened(pixels, mask=small))
    assert np.array_equal(found, mask[::10, ::10].repeat(10, 0).repeat(10, 1))


def test_a_mask_with_another_reference_system_and_resolution(on_map, tmp_path):
    mask = in_circle()
    # The same mask in meters of Web Mercator, with pixels of about a quarter of a meter.
    crs = 'EPSG:3857'
    bounds = rasterio.transform.array_bounds(*SIZE, PLACE)
    transform, width, height = rasterio.warp.calculate_default_transform(
        CRS, crs, SIZE[1], SIZE[0], *bounds, resolution=0.25
    )
    warped = np.zeros((height, width), np.uint8)
    rasterio.warp.reproject(
        mask.astype(np.uint8), warped, PLACE, src_crs=CRS, dst_transform=transform, dst_crs=crs
    )
    path = write_tiff(tmp_path / 'warped.tif', warped, crs=crs, transform=transform)
    found = has_data(opened(on_map, mask=path))
    assert (found != mask).mean() < 0.01


def test_masks_that_do_not_fit_are_named(pixels, on_map, tmp_path):
    other = write_tiff(tmp_path / 'other.tif', np.ones((100, 100), np.uint8))
    with pytest.raises(UserError, match='has 100x100 pixels, which is not the shape of the array'):
        opened(pixels, mask=other)
    elsewhere = Affine(0.5, 0, 600_000, 0, -0.5, 5_400_000)
    far = write_tiff(tmp_path / 'far.tif', np.ones(SIZE, np.uint8), crs=CRS, transform=elsewhere)
    sentence = (
        'far.tif is placed at x 600000 to 600100 and y .* but .*scene.tif at x 500000 to 5001'
    )
    with pytest.raises(UserError, match=sentence):
        opened(on_map, mask=far)


def test_tissue_is_found_by_its_color():
    generator = np.random.default_rng(0)
    slide = generator.normal((238, 236, 240), 3, (*SIZE, 3))
    tissue = in_circle() & (np.arange(SIZE[1]) > 30)
    slide[tissue] = generator.normal((190, 110, 170), 12, (tissue.sum(), 3))
    found = has_data(opened(slide.clip(0, 255).astype(np.uint8), tissue=True))
    assert (found != tissue).mean() < 0.02
    glass = generator.normal((238, 236, 240), 3, (*SIZE, 3)).clip(0, 255).astype(np.uint8)
    with pytest.raises(UserError, match='the array has no tissue that differs from the glass'):
        opened(glass, tissue=True)


def test_all_parts_together(pixels, tmp_path):
    mask = np.zeros(SIZE, np.uint8)
    mask[50:] = 1
    path = write_tiff(tmp_path / 'mask.tif', mask)
    image = pixels.copy()
    image[:, 110:] = 0
    scene = opened(image, region=(90, 40, 130, 100), mask=path, nodata=0)
    expected = np.zeros((60, 40), bool)
    expected[10:, :20] = True
    assert np.array_equal(has_data(scene), expected)
    assert scene.source.valid_box().rows == slice(10, 60)
    assert scene.source.identity() != opened(image, region=(90, 40, 130, 100)).source.identity()


def test_the_pixels_of_a_mask_do_not_depend_on_windows(on_map, tmp_path):
    noise = np.random.default_rng(1).integers(0, 2, (300, 400), np.uint8)
    x, y = rasterio.warp.transform(CRS, 'EPSG:32632', [500_050], [5_399_970])
    transform = Affine(0.3, 0.05, x[0] - 60, 0.04, -0.3, y[0] + 50)
    path = write_tiff(tmp_path / 'noise.tif', noise, crs='EPSG:32632', transform=transform)
    scene = opened(on_map, mask=path)
    window = whole(SIZE)
    assert np.array_equal(has_data(scene), scene.source.valid(window))
    assert 0.3 < scene.source.valid(window).mean() < 0.6


def test_values_of_masks_are_labels(pixels, tmp_path):
    mask = in_circle().astype(np.uint8)
    colors = Image.fromarray(mask)
    colors.putpalette([120, 120, 120, 0, 0, 0])  # 1 is black
    colors.save(tmp_path / 'palette.png')
    Image.fromarray(mask.astype(np.uint16)).save(tmp_path / 'wide.png')
    np.save(tmp_path / 'mask.npy', mask)
    for name in ('palette.png', 'wide.png', 'mask.npy'):
        assert np.array_equal(has_data(opened(pixels, mask=tmp_path / name)), mask > 0)
    labels = np.where(mask, mask, 255).astype(np.uint8)
    own = write_tiff(tmp_path / 'own.tif', labels, nodata=255)
    assert np.array_equal(has_data(opened(pixels, mask=own)), mask > 0)


def test_a_range_of_values_becomes_8_bits(tmp_path):
    values = np.arange(0, 12000, 0.5, np.float32)[: 120 * 198].reshape(120, 66, 3)
    values[0, 0] = np.nan
    for dtype, low, high in ((np.float32, -100, 5000), (np.int16, 0, 10000), (np.uint16, 0, 4095)):
        image = np.nan_to_num(values).astype(dtype) if dtype != np.float32 else values
        scene = opened(image, value_range=(low, high))
        expected = ((np.nan_to_num(image.astype(float)) - low) / (high - low) * 255).clip(0, 255)
        found = scene.source.read(whole((120, 66)))
        assert found.dtype == np.uint8
        assert np.abs(found - expected).max() <= 0.51
    assert not has_data(opened(values, value_range=(0, 1)))[0, 0]
    with pytest.raises(ArgumentError, match='--range is for models of RGB images'):
        open_scene(values, None, None, SceneOptions(value_range=(0, 1)))


def test_a_scene_that_a_small_file_claims_is_refused_before_it_is_read(tmp_path):
    pixels = np.broadcast_to(np.uint8(0), (2**30, 2**30, 3))  # one byte
    with pytest.raises(
        UserError, match='has 1073741824x1073741824 pixels where it is read, but at'
    ):
        open_scene(pixels, None, 3, SceneOptions())
    assert open_scene(pixels, None, 3, SceneOptions(region=(5, 6, 9, 9))).source.shape[:2] == (3, 4)
