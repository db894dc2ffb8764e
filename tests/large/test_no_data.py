"""Pixels without data: by their value, by a mask, by transparency, and by NaN."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, tiles, whole
from xcit_mm.data.transforms.decode import BadImageError
from xcit_mm.data.transforms.multiband import LoadMultiband
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.image_source import ReadOptions
from xcit_mm.large.files.image_views import RGBImage
from xcit_mm.large.files.open_image import open_image
from xcit_mm.large.files.slides import Slide
from xcit_mm.large.files.symmetries import Symmetry, TurnedImage

SIZE = 45, 67
WINDOW = Window(slice(3, 38), slice(12, 41))
EMPTY = np.zeros(SIZE, bool)  # where no data is
EMPTY[:20, 5:30] = True
VALUES = np.random.default_rng(0).integers(1, 255, (*SIZE, 4), np.uint8)


def masked_after_its_levels(path: Path) -> Path:
    """Write a file whose mask has no levels, since it was added after the levels of the pixels."""
    place = dict(crs='EPSG:32632', transform=rasterio.Affine(1, 0, 500_000, 0, -1, 5_000_000))
    write(path, VALUES[..., :3], **place)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(path, 'r+') as file:
            file.build_overviews([2, 4])
        with rasterio.open(path, 'r+') as file:
            file.write_mask(~EMPTY)
    return path


def virtual(path: Path) -> Path:
    size, sides = 'rasterXSize="67" rasterYSize="45"', 'xOff="0" yOff="0" xSize="67" ySize="45"'
    source = (
        f'<SourceFilename relativeToVRT="1">{path.name}</SourceFilename><SourceBand>1</SourceBand>'
        f'<SrcRect {sides}/><DstRect {sides}/>'
    )
    band = f'<VRTRasterBand dataType="Byte"><SimpleSource>{source}</SimpleSource></VRTRasterBand>'
    path.with_suffix('.vrt').write_text(f'<VRTDataset {size}>{band}</VRTDataset>')
    return path.with_suffix('.vrt')


def decoded(path: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def write(path: Path, image: np.ndarray, mask: np.ndarray | None = None, **options) -> Path:
    height, width, count = image.shape
    options = dict(tiled=True, blockxsize=32, blockysize=16) | options
    options |= dict(height=height, width=width, count=count, dtype=image.dtype)
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, 'w', 'GTiff', **options) as file,
    ):
        file.write(np.moveaxis(image, -1, 0))
        if mask is not None:
            file.write_mask(mask)
    return path


def filled(value: float, dtype: str = 'u1', bands: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """Return an image with a value where no data is, in some of its three bands."""
    image = VALUES[..., :3].astype(dtype)
    for band in bands:
        image[..., band][EMPTY] = value
    return image


def with_alpha(image: np.ndarray) -> np.ndarray:
    return np.concatenate([image, np.where(EMPTY, 0, 255)[..., None].astype(np.uint8)], axis=2)


@pytest.mark.parametrize(
    'named', [Path, lambda path: [path], virtual], ids=['file', 'mosaic', 'vrt']
)
def test_a_mask_without_levels_reaches_the_levels_of_the_pixels(named, tmp_path):
    path = masked_after_its_levels(tmp_path / 'a.tif')
    for options in (dict(level=0), dict(level=1), dict(level=2), dict(resolution=2)):
        if named is virtual and 'resolution' in options:
            continue  # it has no place
        source = open_image(named(path), str, **options)
        size = source.shape[:2]
        with rasterio.open(path) as file:
            expected = file.read_masks(1, out_shape=size) > 0
        assert 0.05 < (~expected).mean() < 0.3
        valid = np.ones(size, bool)
        for window in tiles(whole(size), (7, 9)):
            if (of_window := source.valid(window)) is not None:
                valid[tuple(window)] = of_window
        assert (valid != expected).mean() <= (0.05 if 'resolution' in options else 0)


def write_png(path: Path, image: np.ndarray) -> Path:
    Image.fromarray(image).save(path)
    return path


MARKED = {
    'value.tif': lambda path: open_image(write(path, filled(0), nodata=0), str),
    'float.tif': lambda path: open_image(write(path, filled(-9999, 'f4'), nodata=-9999), str),
    'nan.tif': lambda path: open_image(write(path, filled(np.nan, 'f4', (1,))), str),
    'nan_value.tif': lambda path: open_image(write(path, filled(np.nan, 'f4'), nodata=np.nan), str),
    'mask.tif': lambda path: open_image(write(path, filled(9, bands=()), ~EMPTY), str),
    'rgba.tif': lambda path: open_image(write(path, with_alpha(filled(9))), str, 3),
    'gray_alpha.tif': lambda path: open_image(
        write(path, with_alpha(filled(9)[..., :1]), photometric='minisblack', alpha='yes'), str, 3
    ),
    'named.tif': lambda path: open_image(write(path, filled(7), nodata=3), str, nodata=7),
    'unused_band.tif': lambda path: open_image(
        write(path, np.dstack([filled(0), VALUES[..., 3]]), nodata=0, photometric='minisblack'),
        str,
        3,
    ),
    'array': lambda path: open_image(filled(7), str, nodata=7),
    'array_nan': lambda path: open_image(filled(np.nan, 'f8', (2,)), str),
    'a.png': lambda path: open_image(write_png(path, filled(7)), decoded, nodata=7),
}


@pytest.mark.parametrize('name', MARKED)
def test_pixels_without_data_are_found_in_any_window(name, tmp_path):
    source = MARKED[name](tmp_path / name)
    assert source.has_gaps
    for image in (source, pickle.loads(pickle.dumps(source))):
        assert np.array_equal(image.valid(WINDOW), ~EMPTY[tuple(WINDOW)])
    assert source.valid(Window(slice(30, 45), slice(2, 9))) is None
    assert source.valid_box() == whole(SIZE)


def write_other_value(path: Path) -> Path:
    """Write a no-data value that no pixel can have, which GDAL does not."""
    value = (42113, 's', 0, '-9999', True)
    tifffile.imwrite(path, filled(0), photometric='rgb', extratags=[value])
    return path


UNMARKED = {
    'plain.tif': lambda path: open_image(write(path, filled(0)), str),
    'other_value.tif': lambda path: open_image(write_other_value(path), str),
    'labels.tif': lambda path: open_image(
        write(path, filled(0)[..., :1], nodata=0), str, are_labels=True
    ),
    'bands.tif': lambda path: open_image(write(path, with_alpha(filled(9))), str),  # all are values
    'finite.tif': lambda path: open_image(write(path, filled(np.inf, 'f4')), str),
}


@pytest.mark.parametrize('name', UNMARKED)
def test_other_pixels_have_data(name, tmp_path):
    source = UNMARKED[name](tmp_path / name)
    assert source.valid(WINDOW) is None and source.has_gaps == (source.dtype.kind == 'f')


def test_views_pass_on_where_data_is():
    source = Array(filled(7), 'the array', nodata=7)
    assert np.array_equal(RGBImage(source).valid(WINDOW), ~EMPTY[tuple(WINDOW)])
    for symmetry in (Symmetry(True, True), Symmetry(False, True, True), Symmetry(True)):
        turned, expected = TurnedImage(source, symmetry), symmetry.array(~EMPTY)
        assert turned.has_gaps
        assert np.array_equal(turned.valid(WINDOW), expected[tuple(WINDOW)])


@pytest.mark.parametrize(
    ('nodata', 'dtype'), [(256, 'u1'), (-1, 'u2'), (0.5, 'i2'), (np.nan, 'u1'), (1e39, 'f4')]
)
def test_a_value_that_the_type_does_not_include_is_refused(nodata, dtype):
    with pytest.raises(UserError) as error:
        open_image(filled(0, dtype), str, nodata=nodata)
    sentence = f'--nodata {nodata:g}: the array has values of type {np.dtype(dtype)}, which cannot'
    assert str(error.value) == f'{sentence} hold it'


def test_bands_may_be_nan_where_no_data_is():
    source = open_image(filled(np.nan, 'f4', (0,)), str)
    pixels, valid = source.read(WINDOW), source.valid(WINDOW)
    bands = LoadMultiband(3).bands(pixels, valid)
    assert np.array_equal(bands, np.where(valid[..., None], pixels, 0))
    valid[0, 0] = True
    with pytest.raises(BadImageError, match='NaN'):
        LoadMultiband(3).bands(pixels, valid)


class Scan:
    """What openslide returns for a slide whose level 1 has half as many pixels."""

    level_dimensions = (134, 90), (67, 45)

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def read_region(self, corner, level, size):
        (x, y), step = corner, 2**level
        rgba = with_alpha(np.full((*SIZE, 3), 100, np.uint8))
        full = rgba.repeat(2, axis=0).repeat(2, axis=1)[:: 2**level, :: 2**level]
        x, y = x // step, y // step
        return Image.fromarray(full[y : y + size[1], x : x + size[0]])


@pytest.fixture
def slide(tmp_path, monkeypatch):
    """Open a stand-in for a slide with areas that were not scanned, which only MIRAX has."""

    def opened(level: int, **properties: str) -> Slide:
        (tmp_path / 'a.svs').touch()
        monkeypatch.setattr('openslide.OpenSlide', lambda path: Scan(properties))
        monkeypatch.setattr('xcit_mm.large.files.slides.require_own_files', lambda path: path)
        return Slide(tmp_path / 'a.svs', ReadOptions(level=level))

    return opened


def test_areas_that_were_not_scanned_are_white_and_have_no_data(slide):
    source = slide(1)
    assert np.array_equal(source.valid(WINDOW), ~EMPTY[tuple(WINDOW)])
    assert set(source.read(WINDOW)[..., 0].ravel()) == {100, 255}
    assert np.array_equal(slide(0).valid(whole((90, 134)))[::2, ::2], ~EMPTY)


def test_levels_between_the_pixels_of_a_slide_are_read_in_fixed_blocks(slide, monkeypatch):
    source = slide(1)
    expected = source.read(whole(SIZE))
    regions, read_region = [], Scan.read_region

    def recorded(scan, corner, level, size):
        regions.append((*corner, *size))
        return read_region(scan, corner, level, size)

    monkeypatch.setattr(Scan, 'read_region', recorded)
    monkeypatch.setattr('xcit_mm.large.files.slides.BLOCK', 32)
    source.read(WINDOW)
    assert regions == [(24, 6, 29, 35)]  # pixels at whole steps
    source.full_size = 90, 133
    regions.clear()
    assert np.array_equal(source.read(WINDOW), expected[tuple(WINDOW)])
    assert regions == [(0, 0, 32, 32), (64, 0, 32, 32), (0, 64, 32, 13), (64, 64, 32, 13)]


def test_the_box_of_the_scanned_area_is_known_from_the_smallest_level(slide, monkeypatch):
    empty = np.ones(SIZE, bool)
    empty[11:31, 20:44] = False
    monkeypatch.setattr(f'{__name__}.EMPTY', empty)
    for level, size in enumerate(((90, 134), (45, 67))):
        step = 2 - level
        box = Window(slice(10 * step, 32 * step), slice(19 * step, 45 * step))
        assert slide(level).valid_box() == box.clipped(size)
    monkeypatch.setattr(f'{__name__}.EMPTY', np.ones(SIZE, bool))
    assert 0 in slide(1).valid_box().size


def test_one_band_with_the_value_is_not_enough(tmp_path):
    source = open_image(write(tmp_path / 'a.tif', filled(0, bands=(1,)), nodata=0), str)
    assert source.has_gaps and source.valid(WINDOW) is None


def test_transparency_is_no_channel_of_an_rgb_image(tmp_path):
    path = write(tmp_path / 'a.tif', with_alpha(filled(9)))
    source = open_image(path, str, 3)
    assert source.shape == (*SIZE, 3) and RGBImage(source).notes == []
    assert open_image(path, str).shape == (*SIZE, 4)


def test_the_value_belongs_to_the_identity_of_an_image(tmp_path):
    path = write(tmp_path / 'a.tif', filled(0))
    images = [open_image(path, str, nodata=nodata) for nodata in (None, 0, 1)]
    assert len({str(image.identity()) for image in images}) == 3
