"""Tiles of one scene: files named together, and virtual rasters, against GDAL."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.virtual_rasters import virtual_raster
from rasterio import Affine
from rasterio.merge import merge

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.large.files import mosaics
from xcit_mm.large.files.image_source import ImageSource
from xcit_mm.large.files.open_image import image_size, open_image

RANDOM = np.random.default_rng(0)
WINDOW = Window(slice(20, 90), slice(31, 104))
CORNER = 600_000, 5_000_000
# The corners of tiles of 60x50 pixels: the second overlaps the first, and two corners are empty.
PLACES = {'a.tif': (0, 0), 'b.tif': (40, 10), 'c.tif': (56, 64)}


def write(path: Path, at: tuple[int, int] = (0, 0), count: int = 3, side: float = 0.5, **options):
    """Write a tile whose corner is at a column and a row of the mosaic."""
    system = options.pop('crs', 'EPSG:32632')
    dtype = np.dtype(options.pop('dtype', 'uint8'))
    pixels = RANDOM.integers(10, 256, (count, 50, 60)).astype(dtype)
    empty = options.pop('empty', options.get('nodata'))
    if empty is not None:
        pixels[:, :25, 20:45] = empty
    transform = Affine(side, 0, CORNER[0] + at[0] * 0.5, 0, -side, CORNER[1] - at[1] * 0.5)
    place = {} if system is None else dict(crs=system, transform=transform)
    options |= dict(tiled=True, blockxsize=32, blockysize=16, count=count, **place)
    with rasterio.open(path, 'w', 'GTiff', height=50, width=60, dtype=dtype, **options) as file:
        file.write(pixels)
    return path


def scene(folder: Path, **options) -> list[Path]:
    return [write(folder / name, at, **options) for name, at in PLACES.items()]


def in_parts(source: ImageSource, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    pixels, valid = np.empty(source.shape, source.dtype), np.ones(source.shape[:2], bool)
    for window in tiles(whole(source.shape[:2]), size):
        pixels[tuple(window)] = source.read(window)
        is_valid = source.valid(window)
        valid[tuple(window)] = True if is_valid is None else is_valid
    return pixels, valid


@pytest.mark.parametrize('nodata', [None, 0])
def test_tiles_make_up_one_image(tmp_path, nodata, monkeypatch):
    monkeypatch.setattr(mosaics, 'MAX_OPEN', 2)
    paths = scene(tmp_path, nodata=nodata)
    expected, transform = merge(paths, method='first', nodata=0)
    source = open_image(paths, str)
    assert source.shape == (114, 116, 3) and source.name == f'{paths[0]} and 2 other tiles'
    for image in (source, pickle.loads(pickle.dumps(source))):
        pixels, valid = in_parts(image, (37, 21))
        assert np.array_equal(pixels, np.moveaxis(expected, 0, -1))
        assert np.array_equal(valid, (expected > 0).any(axis=0))
        assert np.array_equal(image.read(WINDOW), pixels[tuple(WINDOW)])
    source.read(WINDOW)
    source.valid(WINDOW)[:] = False  # the next caller gets its own
    assert np.array_equal(source.valid(WINDOW), valid[tuple(WINDOW)])
    assert source.georeference['transform'] == transform
    assert source.georeference['crs'].to_epsg() == 32632
    assert source.pixel_size.width == 0.5


def test_the_state_of_a_mosaic_is_the_state_of_all_files(tmp_path):
    paths = scene(tmp_path)
    source, others = open_image(paths, str), open_image(paths[::-1], str)
    assert open_image(paths, str).identity() == source.identity() != others.identity()
    source.require_unchanged()
    write(paths[2], PLACES['c.tif'])
    with pytest.raises(UserError, match=r'a.tif and 2 other tiles has changed while'):
        source.require_unchanged()
    assert open_image(paths, str).identity() != source.identity()


def test_levels_of_a_mosaic(tmp_path):
    paths = [write(tmp_path / f'{x}.tif', (x, 0)) for x in (0, 60)]
    for path in paths:
        with rasterio.open(path, 'r+') as file:
            file.build_overviews([2, 4, 8], rasterio.enums.Resampling.average)
    source = open_image(paths, str)
    assert source.levels == ((50, 120), (25, 60), (13, 30))  # 60 is no multiple of 8
    for level, size in enumerate(source.levels):
        reduced = open_image(paths, str, level=level)
        with rasterio.open(paths[1]) as file:
            expected = np.moveaxis(file.read(out_shape=(size[0], size[1] // 2)), 0, -1)
        pixels, valid = in_parts(reduced, (7, 19))
        assert valid.all() and np.array_equal(pixels[:, size[1] // 2 :], expected)
    assert open_image(paths, str, resolution=1.0).level == 1
    assert open_image(paths, str, resolution=1.3).shape == (19, 46, 3)


VIRTUAL = {
    'plain': dict(),
    'nodata': dict(nodata=0),
    'other_nodata': dict(nodata=0),
    'named_nodata': dict(empty=7),
    'float': dict(dtype='float32', nodata=-9999),
    'extent': dict(),
    'two_bands': dict(),
}


@pytest.mark.parametrize('name', VIRTUAL)
def test_a_virtual_raster_is_read_as_by_gdal(name, tmp_path):
    scene(tmp_path, **VIRTUAL[name])
    path = virtual_raster(tmp_path / 'a.vrt', name)
    with rasterio.open(path) as file:
        expected, transform = np.moveaxis(file.read(), 0, -1), file.transform
        mask = file.dataset_mask() > 0
    source = open_image(path, str)
    for image in (source, pickle.loads(pickle.dumps(source))):
        pixels, valid = in_parts(image, (37, 21))
        assert np.array_equal(pixels, expected)
        if name not in ('plain', 'extent', 'two_bands'):  # GDAL sees no gaps there
            assert np.array_equal(valid, mask)
        else:
            assert np.array_equal(valid, (expected > 0).any(axis=2))
    assert source.georeference['transform'] == transform
    assert image_size(str(path)) == expected.shape[:2]


def test_tiles_between_the_pixels_of_a_virtual_raster_move_to_the_nearest_ones(tmp_path):
    scene(tmp_path)
    exact = virtual_raster(tmp_path / 'exact.vrt', 'extent')
    moved = virtual_raster(tmp_path / 'moved.vrt', 'between_pixels')
    pixels, valid = in_parts(open_image(exact, str), (50, 50))
    others = in_parts(open_image(moved, str), (50, 50))
    assert np.array_equal(others[0], pixels) and np.array_equal(others[1], valid)


def test_bands_of_several_files_are_put_together(tmp_path):
    paths = [write(tmp_path / name, count=1) for name in 'ab']
    paths = [path.rename(path.with_suffix('.tif')) for path in paths]
    source = open_image(virtual_raster(tmp_path / 'a.vrt', 'separate'), str)
    for band, path in enumerate(paths):
        with rasterio.open(path) as file:
            assert np.array_equal(source.read(whole((50, 60)))[..., band], file.read(1))


def test_transparency_of_a_virtual_raster_is_its_mask(tmp_path):
    scene(tmp_path)
    path = virtual_raster(tmp_path / 'a.vrt', 'alpha')
    with rasterio.open(path) as file:
        mask = file.read(4) > 0
    source = open_image(path, str, 3)
    assert source.shape[2] == 3 and np.array_equal(source.valid(whole(mask.shape)), mask)


@pytest.mark.parametrize('is_virtual', [False, True])
def test_transparency_of_tiles_is_a_band_if_all_bands_are_read(is_virtual, tmp_path):
    paths = scene(tmp_path, count=4, photometric='rgb', alpha='yes')
    image = virtual_raster(tmp_path / 'a.vrt', 'first_on_top_rgba') if is_virtual else paths
    single = open_image(paths[0], str)
    source = open_image(image, str)
    assert source.shape[2] == source.channels == single.channels == 4
    window = Window(slice(0, 50), slice(0, 40))  # of the first tile
    expected = single.read(window)
    assert np.array_equal(source.read(window), expected)
    assert np.array_equal(open_image(image, str, 3).read(window), expected[..., :3])


DIFFERENT = {
    'system': dict(crs='EPSG:32633'),
    'size': dict(side=0.6),
    'grid': dict(at=(60.3, 0)),
    'type': dict(dtype='uint16'),
    'bands': dict(count=4, photometric='minisblack'),
}


@pytest.mark.parametrize('name', DIFFERENT)
def test_tiles_that_do_not_fit_together_are_named(name, tmp_path):
    options = dict(at=(60, 0)) | DIFFERENT[name]
    paths = [write(tmp_path / 'a.tif'), write(tmp_path / 'b.tif', **options)]
    with pytest.raises(UserError, match=f'{paths[0]} and {paths[1]} do not fit together: '):
        open_image(paths, str, 3)


def test_a_tile_without_a_place_is_named(tmp_path):
    paths = [write(tmp_path / 'a.tif'), write(tmp_path / 'b.tif', crs=None)]
    with pytest.raises(UserError, match=r'b.tif has no place on the map, but a tile of a mo'):
        open_image(paths, str)
    with pytest.raises(UserError, match=r'none.tif does not exist'):
        open_image([paths[0], tmp_path / 'none.tif'], str)


SIZE = 'xSize="60" ySize="50"'
PART, SHOWN = f'<SrcRect xOff="0" yOff="0" {SIZE}/>', f'<DstRect xOff="0" yOff="0" {SIZE}/>'
FILE = '<SourceFilename relativeToVRT="1">a.tif</SourceFilename><SourceBand>1</SourceBand>'
FILE = f'<SimpleSource>{FILE}{PART}{SHOWN}</SimpleSource>'
BAND = f'<VRTRasterBand dataType="Byte" band="1">{FILE}</VRTRasterBand>'
TEXT = f'<VRTDataset rasterXSize="60" rasterYSize="50">{BAND}</VRTDataset>'
PLACE = '<GeoTransform>0,1,0,0,0,1</GeoTransform><VRTR'
CODE = '<PixelFunctionCode>1</PixelFunctionCode><SimpleSource'
HOSTILE = {
    'nested': (('a.tif<', 'b.vrt<'), "names 'b.vrt', which is no TIFF or JPEG 2000 file"),
    'remote': (('a.tif<', '/vsicurl/http://127.0.0.1/a.tif<'), 'which is no TIFF'),
    'address': (('a.tif<', 'http://127.0.0.1/a.tif<'), 'No such file'),
    'secret': (('a.tif<', '/etc/passwd<'), 'which is no TIFF'),
    'text': (('a.tif<', 'text.tif<'), 'cannot be opened'),
    'pipe': (('a.tif<', 'pipe.tif<'), 'Not a regular file'),
    'derived': (('dataType', 'subClass="VRTDerivedRasterBand" dataType'), 'has a VRTDerivedR'),
    'function': (('<SimpleSource', CODE), 'it has a PixelFunctionCode'),
    'warped': (('rasterX', 'subClass="VRTWarpedDataset" rasterX'), 'it has a VRTWarpedDataset'),
    'scaled': ((PART, PART.replace('60', '30')), 'it scales'),
    'beyond': ((PART, PART.replace('xOff="0"', 'xOff="9"')), 'hostile.vrt: rows 0 to 50'),
    'system': (('<VRTR', f'<SRS>http://127.0.0.1:9/a</SRS>{PLACE}'), 'is neither a code'),
    'entity': (('<VRTD', '<!DOCTYPE a [<!ENTITY a "a">]><VRTD'), 'XML entities'),
}


@pytest.mark.parametrize('name', HOSTILE)
def test_a_virtual_raster_that_names_something_else_is_refused(name, tmp_path):
    write(tmp_path / 'a.tif', count=1)
    (tmp_path / 'b.vrt').write_text(TEXT)
    (tmp_path / 'text.tif').write_text(TEXT)
    os.mkfifo(tmp_path / 'pipe.tif')
    assert open_image(tmp_path / 'b.vrt', str).shape == (50, 60, 1)
    path = tmp_path / 'hostile.vrt'
    path.write_text(TEXT.replace(*HOSTILE[name][0], 1))
    assert path.read_text() != TEXT
    with pytest.raises(UserError) as error:
        source = open_image(path, str)
        source.read(whole(source.shape[:2]))
    assert HOSTILE[name][1] in str(error.value) and str(tmp_path) in str(error.value)
