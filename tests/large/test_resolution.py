"""Levels of files, and images at another resolution, against the whole image."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.tiff import write_tiff
from rasterio import Affine

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.image_source import ImageSource
from xcit_mm.large.files.open_image import open_image
from xcit_mm.large.files.resampled_image import ResampledImage

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (150, 211, 3), np.uint8)
ON_MAP = dict(crs='EPSG:32632', transform=Affine(0.5, 0, 600_000, 0, -0.5, 5_000_000))
JPEG_2000 = dict(width=422, height=300, count=3, dtype='uint8', REVERSIBLE='YES', QUALITY=100)
JPEG_2000 |= dict(RESOLUTIONS=3, BLOCKXSIZE=64, BLOCKYSIZE=64)
KINDS = {
    'u1': PIXELS,
    'u2': PIXELS.astype(np.uint16) * 257,
    'f4': RANDOM.normal(size=PIXELS.shape).astype(np.float32),
    'i4': PIXELS.astype(np.int32) * 10**6,
}


def write(path: Path, image: np.ndarray = PIXELS, factors: tuple[int, ...] = (), **options) -> Path:
    write_tiff(path, image, **dict(tiled=True, blockxsize=64, blockysize=32) | options)
    if factors:
        with rasterio.open(path, 'r+') as file:
            file.build_overviews(factors, rasterio.enums.Resampling.average)
    return path


def in_parts(source: ImageSource, size: tuple[int, int], read: str = 'read') -> np.ndarray:
    """Put the windows of an image together."""
    shape = source.shape if read == 'read' else source.shape[:2]
    image = np.ones(shape, source.dtype if read == 'read' else bool)
    for window in tiles(whole(source.shape[:2]), size):
        values = getattr(source, read)(window)
        if values is not None:
            image[tuple(window)] = values
    return image


def expected_axis(values: np.ndarray, size: int) -> np.ndarray:
    """Resample the first axis by the definition, in float64."""
    n = len(values)
    matrix = np.zeros((size, n))
    for i in range(size):
        if size < n:
            start, stop = i * n / size, (i + 1) * n / size
            for j in range(n):
                matrix[i, j] = max(0, min(j + 1, stop) - max(j, start))
        else:
            center = (i + 0.5) * n / size - 0.5
            for j in (int(np.floor(center)), int(np.floor(center)) + 1):
                matrix[i, min(max(j, 0), n - 1)] += 1 - abs(j - center)
    matrix /= matrix.sum(axis=1, keepdims=True)
    return np.tensordot(matrix, values, 1)


def expected(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    rows = expected_axis(values.astype(float), size[0])
    return expected_axis(rows.swapaxes(0, 1), size[1]).swapaxes(0, 1)


@pytest.mark.parametrize(
    ('kind', 'size'),
    [('u1', (75, 70)), ('f4', (149, 210)), ('u2', (200, 333)), ('i4', (150, 5)), ('u1', (1, 1))],
)
def test_a_resampled_image_has_the_same_values_in_any_window(kind, size, monkeypatch):
    image = ResampledImage(Array(KINDS[kind], 'the array'), size)
    result = image.read(whole(size))
    reference = expected(KINDS[kind], size)
    tolerance = 0.51 if kind != 'f4' else 1e-6
    assert result.dtype == image.dtype and np.abs(result - reference).max() <= tolerance
    monkeypatch.setattr('xcit_mm.large.files.resampled_image.MAX_READ', 3 * 40**2)
    for tile in ((7, 13), (1, 64), (51, 3)):
        assert np.array_equal(in_parts(image, tile), result)


@pytest.mark.parametrize('size', [(70, 97), (300, 422)])
def test_pixels_without_data_do_not_enter_the_mean(size):
    pixels = KINDS['f4'].copy()
    pixels[30:90, 40:111] = np.nan
    valid = ~np.isnan(pixels[..., 0])
    image = ResampledImage(Array(pixels, 'the array'), size)
    shares = expected(valid, size)
    result = in_parts(image, (9, 31), 'valid')
    assert np.array_equal(result, shares > 0.5 - 1e-9)
    sums = expected(np.where(valid[..., None], pixels, 0), size)
    mean = sums[result] / shares[result][:, None]
    assert np.abs(in_parts(image, (9, 31))[result] - mean).max() < 1e-5


def test_the_levels_of_a_file(tmp_path):
    path = write(tmp_path / 'a.tif', factors=(2, 4), nodata=0, **ON_MAP)
    for level, size in enumerate([(150, 211), (75, 106), (38, 53)]):
        source = open_image(path, str, level=level)
        assert source.shape == (*size, 3) and source.level == level
        assert source.full_size == (150, 211) and source.levels[level] == size
        with rasterio.open(path) as file:
            pixels = np.moveaxis(file.read(out_shape=size), 0, -1)
        for image in (source, pickle.loads(pickle.dumps(source))):
            assert np.array_equal(in_parts(image, (33, 20)), pixels)
        corner = source.georeference['transform'] * size[::-1]
        assert corner == pytest.approx(ON_MAP['transform'] * (211, 150))
        assert source.pixel_size.height == pytest.approx(0.5 * 150 / size[0])


@pytest.mark.parametrize(
    ('resolution', 'size', 'level'),
    [(0.5, (150, 211), 0), (0.9, (83, 117), 0), (1.0, (75, 106), 1), (3.7, (20, 29), 2)],
)
def test_a_resolution_is_read_from_the_best_level(tmp_path, resolution, size, level):
    path = write(tmp_path / 'a.tif', factors=(2, 4), **ON_MAP)
    source = open_image(path, str, resolution=resolution)
    assert source.shape == (*size, 3) and source.level == level
    assert source.full_size == (150, 211)
    assert source.pixel_size.width == pytest.approx(resolution, rel=0.05)
    base = open_image(path, str, level=level).read(whole(source.levels[level]))
    for image in (source, pickle.loads(pickle.dumps(source))):
        assert np.abs(in_parts(image, (17, 31)) - expected(base, size)).max() <= 0.51
    corner = source.georeference['transform'] * size[::-1]
    assert corner == pytest.approx(ON_MAP['transform'] * (211, 150))
    assert source.georeference['crs'].to_epsg() == 32632
    assert (source.identity() == open_image(path, str).identity()) == (
        level == 0 == resolution % 0.5
    )


def test_a_level_with_about_these_pixels_is_read_as_it_is(tmp_path):
    path = write(tmp_path / 'a.tif', factors=(2, 4), **ON_MAP)
    for resolution, level in ((0.504, 0), (0.496, 0), (0.995, 1), (1.004, 1)):
        source = open_image(path, str, resolution=resolution)
        assert source.identity() == open_image(path, str, level=level).identity()


def test_levels_of_jpeg_2000(tmp_path):
    path = tmp_path / 'a.jp2'
    with rasterio.open(path, 'w', 'JP2OpenJPEG', **JPEG_2000) as file:
        file.write(np.moveaxis(np.tile(PIXELS, (2, 2, 1)), -1, 0))
    source = open_image(path, str, level=1)
    with rasterio.open(path, overview_level=0) as file:
        expected = np.moveaxis(file.read(), 0, -1)
    assert source.levels[:2] == ((300, 422), (150, 211))
    assert np.array_equal(in_parts(source, (33, 20)), expected)


@pytest.mark.parametrize(
    ('crs', 'corner', 'resolution'),
    [
        ('EPSG:2263', (980_000, 200_000), 0.3048006096),  # New York, US survey feet
        ('EPSG:3857', (1e6, 8_399_738), 0.5 / np.hypot(1, np.sinh(8_399_738 / 6_378_137)) * 2),
    ],
    ids=['feet', '60 degrees north'],
)
def test_a_resolution_is_in_meters_on_the_ground(crs, corner, resolution, tmp_path):
    place = dict(crs=crs, transform=Affine(0.5, 0, corner[0], 0, -0.5, corner[1]))
    source = open_image(write(tmp_path / 'a.tif', **place), str, resolution=resolution)
    assert source.shape == (75, 106, 3)


def test_the_levels_of_a_slide(tmp_path):
    full = PIXELS.repeat(2, axis=0).repeat(2, axis=1)[:299, :421]
    info = 'Aperio Image Library v1\n421x299 [0,0 421x299] (64x64)|MPP = 0.25|AppMag = 40'
    with tifffile.TiffWriter(tmp_path / 'a.svs') as file:
        options = dict(tile=(64, 64), photometric='rgb', metadata=None)
        file.write(full, description=info, **options)
        file.write(PIXELS[:150:2, ::2], description=info, subfiletype=1, **options)
    source = open_image(tmp_path / 'a.svs', str, level=1)
    assert source.levels == ((299, 421), (75, 106)) and source.full_size == (299, 421)
    assert source.pixel_size.unit == 'µm'
    assert source.pixel_size.width == pytest.approx(0.25 * 421 / 106)
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(in_parts(again, (13, 40)), source.read(whole((75, 106))))
    assert np.abs(in_parts(source, (13, 40)).astype(int) - PIXELS[:150:2, ::2]).max() <= 1
    assert source.georeference['transform'] * (106, 75) == pytest.approx((421, 299))
    reduced = open_image(tmp_path / 'a.svs', str, resolution=0.5)
    assert reduced.shape == (150, 210, 3) and reduced.level == 0


REFUSED = {
    'missing': (dict(level=3), 'has no level 3, but 0 (211x150), 1 (106x75): --resolution red'),
    'degrees': (dict(resolution=1.0), 'does not contain the size of its pixels in meters: name a'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_levels_and_resolutions_that_do_not_exist_are_refused(name, tmp_path):
    options, sentence = REFUSED[name]
    place = ON_MAP if name == 'missing' else dict(ON_MAP, crs='EPSG:4326')
    path = write(tmp_path / 'a.tif', factors=(2,), **place)
    with pytest.raises(UserError) as error:
        open_image(path, str, **options)
    assert str(error.value).startswith(f'{path} {sentence}')


@pytest.mark.parametrize('name', ['OVERVIEW_FILE', '&#79;VERVIEW_FILE'])
def test_overviews_in_another_file_are_refused_and_not_opened(name, tmp_path):
    os.mkfifo(tmp_path / 'pipe')  # whoever opens it waits
    item = f'<Item name="{name}" domain="OVERVIEWS">{tmp_path}/pipe</Item>'
    tags = [(42112, 's', 0, f'<GDALMetadata>{item}</GDALMetadata>', True)]
    path = tmp_path / 'a.tif'
    tifffile.imwrite(path, PIXELS, photometric='rgb', extratags=tags)
    with pytest.raises(UserError) as error:
        open_image(path, str)
    sentence = 'names another file or address that holds its overviews: copy it with gdal_translate'
    assert str(error.value) == f'{path} {sentence} -nomd'


def test_the_box_of_a_resampled_image_holds_what_has_data():
    source = Array(PIXELS, 'the array')
    source.valid_box = lambda: Window(slice(31, 60), slice(0, 50))
    for size in ((50, 70), (300, 422)):
        rows, columns = ResampledImage(source, size).valid_box()
        assert rows.start <= 31 * size[0] / 150 < rows.start + 5
        assert rows.stop - 5 < 60 * size[0] / 150 <= rows.stop
        assert columns.start == 0 and columns.stop >= 50 * size[1] / 211


def test_a_mask_and_a_place_are_those_of_the_level(tmp_path):
    path = tmp_path / 'a.tif'
    write(path)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, 'r+') as file:
        mask = np.full((150, 211), 255, np.uint8)
        mask[:80] = 0
        file.write_mask(mask)
        file.build_overviews([2])
    source = open_image(path, str, level=1)
    valid = source.valid(whole((75, 106)))
    assert not valid[:40].any() and valid[40:].all()
    transform = source.georeference['transform']
    assert transform * (106, 75) == (211, 150) and 'crs' not in source.georeference
