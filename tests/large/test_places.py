"""Labels, masks and heights lie at their places on the map, as rasterio's reproject puts them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.tiff import write_tiff
from PIL import Image
from rasterio import Affine
from rasterio.control import GroundControlPoint
from rasterio.rpc import RPC
from rasterio.warp import Resampling, reproject, transform

from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import tiles, whole
from xcit_mm.data.tiff.places import Place, are_laid_by_pixels, place_of_file
from xcit_mm.data.transforms.decode import LABELS_ELSEWHERE, BadImageError, LoadImage
from xcit_mm.data.transforms.height_labels import LoadHeights
from xcit_mm.large.files.image_source import ImageSource
from xcit_mm.large.files.open_image import open_image
from xcit_mm.large.labels.label_windows import open_labels
from xcit_mm.large.labels.masks import mask_of, open_mask
from xcit_mm.predict.large.open_scene import SceneOptions, open_scene

SIZE = 64, 96
CRS, OTHER = 'EPSG:32632', 'EPSG:32633'
PLACE = Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000)
LABELS = np.random.default_rng(0).integers(0, 5, (50, 70), np.uint8)
(WEST,), (NORTH,) = transform(CRS, OTHER, [500_010], [4_999_995])
POINTS = [
    GroundControlPoint(row, column, *(PLACE * (column, row)))
    for row in (0, 64)
    for column in (0, 96)
]


def scene(folder: Path, **options) -> ImageSource:
    options = options or dict(crs=CRS, transform=PLACE)
    path = write_tiff(folder / 'scene.tif', np.full((*SIZE, 3), 90, np.uint8), **options)
    return open_image(path, str)


def on_scene(place: Affine, crs: str, labels: np.ndarray = LABELS) -> np.ndarray:
    expected = np.full(SIZE, 255, np.uint8)
    grids = dict(src_transform=place, src_crs=crs, dst_transform=PLACE, dst_crs=CRS)
    fill = dict(resampling=Resampling.nearest, dst_nodata=255, init_dest_nodata=True, tolerance=0)
    reproject(labels, expected, **grids, **fill)
    return expected


PLACES = {
    'same pixels': (PLACE, CRS),
    'almost the same pixels': (PLACE * Affine.translation(0.2, -0.3), CRS),
    'a similar system': (PLACE, 'EPSG:25832'),
    'shifted': (PLACE * Affine.translation(20, 10.7), CRS),
    'larger than the scene': (PLACE * Affine.translation(-9, -7) * Affine.scale(2), CRS),
    'south up': (Affine(0.5, 0, 500_000, 0, 0.5, 4_999_972), CRS),
    'finer': (PLACE * Affine.translation(5.1, 3.2) * Affine.scale(0.31, 0.23), CRS),
    'rotated': (PLACE * Affine.translation(50, 5) * Affine.rotation(33), CRS),
    'another zone': (Affine(0.5, 0, WEST, 0, -0.5, NORTH), OTHER),
    'degrees': (Affine(6e-6, 0, 9.00005, 0, -4e-6, 45.15337), 'EPSG:4326'),
}


@pytest.mark.parametrize('name', PLACES)
def test_labels_and_masks_lie_at_their_place(name, tmp_path):
    place, crs = PLACES[name]
    expected, image = on_scene(place, crs), scene(tmp_path)
    path = write_tiff(tmp_path / 'labels.tif', LABELS, transform=place, crs=crs)
    assert (expected != 255).mean() > 0.03 and set(range(5)) <= {*expected.flat}
    labels = open_labels(str(path), image)
    for read in (labels, pickle.loads(pickle.dumps(labels))):
        assert np.array_equal(read.read(whole(SIZE)), expected)
    for window in tiles(whole(SIZE), (17, 23)):
        assert np.array_equal(labels.read(window), expected[tuple(window)])
    assert np.array_equal(labels.counts[:256], np.bincount(expected.ravel(), minlength=256))
    mask = mask_of(open_mask(path), image)
    is_chosen = (expected != 0) & (expected != 255)
    assert np.array_equal(mask.read(whole(SIZE)), is_chosen)
    inside = np.zeros(SIZE, bool)
    inside[tuple(mask.box)] = True
    assert inside[is_chosen].all()


def test_masks_across_the_180th_meridian(tmp_path):
    ((x,), (y,)), size = transform('EPSG:4326', 'EPSG:32760', [179.8], [-16]), (40, 60)
    utm = dict(crs='EPSG:32760', transform=Affine(800, 0, x, 0, -800, y))
    image = open_image(write_tiff(tmp_path / 'a.tif', np.zeros(size, np.uint8), **utm), str)
    values = np.random.default_rng(1).integers(0, 2, (80, 120), np.uint8)
    for start in (179.8, -180.2):  # the same longitude
        place = Affine(0.004, 0, start, 0, -0.004, -16)
        path = write_tiff(tmp_path / 'mask.tif', values, crs='EPSG:4326', transform=place)
        found = mask_of(open_mask(path), image).read(whole(size))
        columns, rows = (v.ravel() + 0.5 for v in np.meshgrid(np.arange(60), np.arange(40)))
        lon, lat = map(
            np.array, transform(utm['crs'], 'EPSG:4326', *(utm['transform'] * (columns, rows)))
        )
        column, row = np.floor([(lon % 360 - 179.8) / 0.004, (-16 - lat) / 0.004]).astype(int)
        inside = (column >= 0) & (column < 120) & (row >= 0) & (row < 80)
        expected = np.zeros(len(lon), bool)
        expected[inside] = values[row[inside], column[inside]] > 0
        assert expected.sum() > 500 and (lon < 0).any()
        assert np.array_equal(found.ravel(), expected)


def test_labels_a_full_turn_away_are_on_the_pixels_of_the_image():
    crs, place = rasterio.CRS.from_epsg(4326), Affine(0.004, 0, 179.8, 0, -0.004, -16)
    image = Place(crs, place)
    for start, is_same in ((179.8, True), (-180.2, True), (-180.1, False), (359.8, False)):
        labels = Place(crs, Affine(0.004, 0, start, 0, -0.004, -16))
        assert are_laid_by_pixels(labels, SIZE, image, SIZE) == is_same


def world_file(path: Path, place: Affine) -> None:
    a, b, c, d, e, f, *_ = place * Affine.translation(0.5, 0.5)
    path.write_text('\n'.join(map(repr, (a, d, b, e, c, f))))


def write_png(path: Path, labels: np.ndarray) -> Path:
    Image.fromarray(labels).save(path)
    return path


def write_npy(path: Path, labels: np.ndarray) -> Path:
    np.save(path, labels)
    return path


@pytest.mark.parametrize(
    ('name', 'sidecar'),
    [
        ('a.tif', 'a.tfw'),
        ('a.TIF', 'a.TFW'),
        ('a.tif', 'a.wld'),
        ('a.png', 'a.pgw'),
        ('a.npy', 'a.nyw'),
    ],
)
def test_labels_with_a_world_file_lie_at_its_place(name, sidecar, tmp_path):
    place = PLACE * Affine.translation(20, 10) * Affine.scale(0.77)
    writers = dict(tif=write_tiff, png=write_png, npy=write_npy)
    path = writers[name[-3:].lower()](tmp_path / name, LABELS)
    world_file(tmp_path / sidecar, place)
    assert place_of_file(path).transform.almost_equals(place, 1e-9)
    labels = open_labels(str(path), scene(tmp_path))
    assert np.array_equal(labels.read(whole(SIZE)), on_scene(place, CRS))


@pytest.mark.parametrize('name', ['labels.tif', 'labels.png'])
def test_a_place_in_a_sidecar_of_gdal_is_read_as_gdal_does(name, tmp_path):
    place, driver = Affine(0.5, 0, WEST, 0, -0.5, NORTH), dict(tif='GTiff', png='PNG')[name[-3:]]
    shape = dict(height=50, width=70, count=1, dtype='uint8')
    with (
        rasterio.Env(GTIFF_DONT_WRITE_GEOKEYS=True),
        rasterio.open(tmp_path / name, 'w', driver, **shape) as file,
    ):
        file.write(LABELS, 1)
    path, other = tmp_path / name, write_png(tmp_path / 'other.png', LABELS)
    with rasterio.open(other, 'r+') as file:
        file.crs, file.transform = OTHER, place
    Path(f'{other}.aux.xml').rename(f'{path}.aux.xml')
    with rasterio.open(path) as file:
        assert place_of_file(path) == Place(file.crs, file.transform)
    labels = open_labels(str(path), scene(tmp_path))
    assert np.array_equal(labels.read(whole(SIZE)), on_scene(place, OTHER))


def test_a_scene_with_a_world_file_has_its_place(tmp_path):
    path = write_tiff(
        tmp_path / 'a.tif',
        np.full((*SIZE, 3), 90, np.uint8),
        tiled=True,
        blockxsize=16,
        blockysize=16,
    )
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2])
    world_file(tmp_path / 'a.tfw', PLACE)
    for level, place in ((0, PLACE), (1, PLACE * Affine.scale(2))):
        opened = open_scene(path, str, 3, SceneOptions(level=level))
        assert opened.georeference == dict(crs=None, transform=place)
        assert 'a.tif has a place on a map without a reference system' in opened.notes[0]
        assert opened.full_georeference == dict(crs=None, transform=PLACE)


def test_labels_without_a_place_belong_to_the_pixels(tmp_path):
    labels = np.random.default_rng(3).integers(0, 5, SIZE, np.uint8)
    image = scene(tmp_path)
    for path in (write_tiff(tmp_path / 'a.tif', labels), write_png(tmp_path / 'a.png', labels)):
        assert np.array_equal(open_labels(str(path), image).read(whole(SIZE)), labels)
    placed = write_tiff(tmp_path / 'b.tif', labels, crs=CRS, transform=PLACE)
    image = open_image(write_tiff(tmp_path / 'c.tif', np.zeros(SIZE, np.uint8)), str)
    assert np.array_equal(open_labels(str(placed), image).read(whole(SIZE)), labels)


def rpc(offset: float) -> RPC:
    line = [0, 1, *[0] * 18]
    numbers = dict.fromkeys(
        ('height_scale', 'lat_scale', 'line_scale', 'long_scale', 'samp_scale'), 1
    )
    offsets = dict(height_off=0, lat_off=0, line_off=offset, long_off=0, samp_off=0)
    names = 'line_num_coeff', 'line_den_coeff', 'samp_num_coeff', 'samp_den_coeff'
    return RPC(**numbers, **offsets, **dict.fromkeys(names, line), err_bias=0, err_rand=0)


def test_control_points_and_rpcs_place_only_files_with_the_same(tmp_path):
    by_points, by_rpc = dict(gcps=POINTS, crs=CRS), dict(rpcs=rpc(3))
    labels = np.random.default_rng(4).integers(0, 5, SIZE, np.uint8)
    others = dict(gcps=POINTS[1:], crs=CRS), dict(rpcs=rpc(4)), dict(crs=CRS, transform=PLACE)
    for options, words in ((by_points, '4 ground control points in EPSG:32632'), (by_rpc, 'RPCs')):
        image = scene(tmp_path, **options)
        same = write_tiff(tmp_path / 'same.tif', labels, **options)
        assert np.array_equal(open_labels(str(same), image).read(whole(SIZE)), labels)
        assert mask_of(open_mask(same), image).read(whole(SIZE)).sum() == (labels > 0).sum()
        for other in others:
            path = str(write_tiff(tmp_path / 'other.tif', labels, **other))
            with pytest.raises(BadImageError, match=rf'{path} is placed .*scene.tif by .*{words}'):
                open_labels(path, image)
            with pytest.raises(UserError, match=rf'{path} is placed .*scene.tif by .*{words}'):
                mask_of(open_mask(path), image)
        [note] = open_scene(tmp_path / 'scene.tif', str, 3, SceneOptions()).notes
        assert words in note and 'so results are in pixels: gdalwarp' in note


def test_labels_and_heights_of_ordinary_images_have_to_lie_at_their_place(tmp_path):
    image = str(
        write_tiff(tmp_path / 'a.tif', np.full((*SIZE, 3), 90, np.uint8), crs=CRS, transform=PLACE)
    )

    def load(**options) -> None:
        labels = write_tiff(tmp_path / 'labels.tif', np.ones(SIZE, np.uint8), **options)
        results = LoadImage()(dict(img_path=image, seg_map_path=str(labels)))
        LoadHeights()(results | dict(depth_map_path=str(labels)))

    load()
    for system in (CRS, 'EPSG:25832', None):
        load(crs=system, transform=PLACE)
    for options in (
        dict(crs=CRS, transform=PLACE * Affine.translation(0, 1)),
        dict(crs=OTHER, transform=PLACE),
        dict(crs=CRS, transform=Affine(0.5, 0, 500_000, 0, 0.5, 4_999_968)),
    ):
        with pytest.raises(
            BadImageError, match=f'{LABELS_ELSEWHERE}: .*labels.tif is placed at .*a.tif'
        ):
            load(**options)
        with pytest.raises(
            BadImageError, match=f'{LABELS_ELSEWHERE}: .*labels.tif is placed at .*a.tif'
        ):
            LoadHeights()(
                dict(img_path=image, depth_map_path=str(tmp_path / 'labels.tif'), ori_shape=SIZE)
            )
