"""Windows of images in files, and what becomes of their values."""

import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.processes import in_child
from helpers.tiff import write_tiff
from PIL import Image

from xcit_mm.base.geometry import Window
from xcit_mm.large.files import rasters
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.files.open_image import open_image
from xcit_mm.large.files.overview import overview
from xcit_mm.predict.model import Model

WINDOW = Window(slice(33, 90), slice(17, 140))


def normalized(image: Path | np.ndarray, model: Model) -> NormalizedImage:
    transforms = model.pipeline.transforms[1:]
    source = open_image(image, model.read, 3)
    return NormalizedImage(source, model.module.data_preprocessor, transforms, model.bands)


def write(path: Path, image: np.ndarray, **options) -> Path:
    return write_tiff(path, image, **dict(tiled=True, blockxsize=64, blockysize=32) | options)


WRITERS = {
    'tiled.tif': lambda path, image: write(path, image, compress='deflate'),
    'striped.tiff': lambda path, image: write(path, image, tiled=False),
    'planar.tif': lambda path, image: write(path, image, interleave='band'),
    'big.tif': lambda path, image: write(path, image, bigtiff='yes', compress='lzw'),
    'slide.svs': lambda path, image: tifffile.imwrite(path, image, tile=(64, 64)),
    'array.npy': np.save,
    'image.png': lambda path, image: Image.fromarray(image).save(path),
}


@pytest.mark.parametrize('name', WRITERS)
def test_windows_of_each_format(name, image, segmentor, tmp_path):
    WRITERS[name](tmp_path / name, image)
    source = open_image(tmp_path / name, segmentor.read)
    assert source.shape == image.shape
    assert np.array_equal(source.read(WINDOW), image[tuple(WINDOW)])
    again = open_image(tmp_path / name, segmentor.read)
    assert again.identity() == source.identity()
    sent = pickle.loads(pickle.dumps(source))
    assert np.array_equal(sent.read(WINDOW), image[tuple(WINDOW)])
    assert sent.identity() == source.identity()
    assert source.georeference == {}


def test_an_image_is_normalized_as_by_the_preprocessor(image, full_size_segmentor):
    model, result = full_size_segmentor, normalized(image, full_size_segmentor)
    sample = model.pack(model.prepare(image))
    data = {key: [value] for key, value in sample.items()}
    expected = model.module.data_preprocessor(data)['inputs'][0]
    assert result.shape == expected.shape
    assert (result[:, 5:77, 8:160] == expected[:, 5:77, 8:160]).all()
    assert result.notes == []


def in_12_bits(image: np.ndarray) -> np.ndarray:
    return (image * np.float32(4095 / 255)).round().astype(np.uint16)


NOTE = 'values from 0 to 65535 are scaled'
OTHER_VALUES = {
    '16.tif': (lambda path, image: write(path, image.astype('u2') * 257), NOTE),
    '12.tif': (lambda path, image: write(path, in_12_bits(image), nbits=12), 'from 0 to 4095 are'),
    'four.tif': (
        lambda path, image: write(path, image[..., [0, 1, 2, 0]], photometric='minisblack'),
        'first 3 of its 4 ch',
    ),
    'gray.tif': (lambda path, image: write(path, image[..., :1]), None),
    'big_endian.npy': (lambda path, image: np.save(path, image.astype('>u2') * 257), NOTE),
    'fortran.npy': (lambda path, image: np.save(path, image.astype('<u2', 'F') * 257), NOTE),
}


@pytest.mark.parametrize('name', OTHER_VALUES)
def test_16_bits_gray_and_other_channels_become_rgb(name, image, segmentor, tmp_path):
    save, note = OTHER_VALUES[name]
    save(tmp_path / name, image)
    result = normalized(tmp_path / name, segmentor)
    expected = image if note else image[..., [0, 0, 0]]
    assert np.array_equal(result.pixels(WINDOW), expected[tuple(WINDOW)])
    assert bool(note) == bool(result.notes) and all(note in n for n in result.notes)


def test_a_reduced_picture_has_the_mean_of_its_pixels():
    image = np.random.default_rng(0).integers(0, 255, (130, 165, 3), np.uint8)
    picture = overview((130, 165), lambda window: image[tuple(window)], 83)
    assert picture.shape == (65, 83, 3)
    assert np.abs(picture[3, 5] - image[6:8, 10:12].mean((0, 1))).max() <= 1
    labels = overview((130, 165), lambda window: image[..., 0][tuple(window)], 83)
    assert np.array_equal(labels, image[::2, ::2, 0])


def test_the_files_of_a_slide_are_read_in_its_folder(image, segmentor, tmp_path):
    folder = tmp_path / 'slide'
    folder.mkdir()
    image = image[:128]  # in blocks of 8 pixels
    Image.fromarray(image).save(folder / 'i.jpg', subsampling=0, restart_marker_blocks=20)
    Image.fromarray(image[::4, ::4]).save(folder / 'm.jpg', subsampling=0, restart_marker_blocks=5)
    (folder / 'a.vms').write_text(
        '[Virtual Microscope Specimen]\nNoLayers=1\nNoJpegColumns=1\nNoJpegRows=1\n'
        'ImageFile=i.jpg\nMapFile=m.jpg\nPhysicalWidth=9\nPhysicalHeight=9\n'
    )
    (tmp_path / 'b.vms').symlink_to(folder / 'a.vms')
    with Image.open(folder / 'i.jpg') as slide:
        expected = np.asarray(slide)
    for path in (folder / 'a.vms', tmp_path / 'b.vms'):
        source = open_image(path, segmentor.read)
        assert source.shape == image.shape
        pixels = source.read(WINDOW)
        assert np.abs(pixels.astype(int) - expected[tuple(WINDOW)]).mean() < 2


@pytest.mark.parametrize('name', ['bands.tif', 'bands.npy'])
def test_bands_that_a_model_does_not_need_take_no_memory(segmentor, tmp_path, name):
    path = tmp_path / name
    if path.suffix == '.npy':
        np.lib.format.open_memmap(path, 'w+', np.uint8, (1024, 1024, 1000)).flush()
    else:
        options = dict(width=1024, height=1024, count=1000, dtype='uint8', tiled=True)
        options |= dict(sparse_ok=True, compress='deflate', interleave='pixel')
        rasterio.open(path, 'w', 'GTiff', **options).close()

    def read() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        image = normalized(path, segmentor)
        assert image[:, slice(0, 1024), slice(0, 1024)].shape == (3, 1024, 1024)
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert taken <= 2**19  # KiB; all bands take twice as much

    assert in_child(read) == 0


def test_wide_strips_are_read_in_rows_that_are_kept(image, segmentor, tmp_path, monkeypatch):
    pixels = np.tile(image, (3, 2, 1))
    tifffile.imwrite(tmp_path / 'a.tif', pixels, compression='zlib', rowsperstrip=2)
    expected = segmentor.predict_large(pixels)
    heights, read = [], rasters.Raster._read

    def record(source: rasters.Raster, window: Window) -> np.ndarray:
        heights.append(window.size[0])
        return read(source, window)

    monkeypatch.setattr(rasters, 'STRIP_BYTES', 100 * pixels[0].nbytes)
    monkeypatch.setattr(rasters.Raster, '_read', record)
    streamed = segmentor.predict_large(tmp_path / 'a.tif')
    assert max(heights) <= 100
    assert np.array_equal(streamed.labels, expected.labels)
    assert np.array_equal(streamed.image, expected.image)


def test_a_pyramid_is_read_at_its_full_size(image, segmentor, tmp_path):
    path = write(tmp_path / 'a.tif', image)
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2, 4])
    assert np.array_equal(open_image(path, segmentor.read).read(WINDOW), image[tuple(WINDOW)])
