"""Windows of images in files, and what becomes of their values."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.large_images import normalized
from helpers.random_weights import SEGMENTOR
from PIL import Image

from xcit_mm import load_model
from xcit_mm.large_images.geometry import Window
from xcit_mm.large_images.window_files import open_image, overview

WINDOW = Window(slice(33, 90), slice(17, 140))


def write(path: Path, image: np.ndarray, **options) -> Path:
    """Write an image (H, W, channels) as a TIFF file by rasterio."""
    height, width, count = image.shape
    options = dict(tiled=True, blockxsize=64, blockysize=32) | options
    options |= dict(height=height, width=width, count=count, dtype=image.dtype)
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(np.moveaxis(image, -1, 0))
    return path


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
    assert source.georeference == {}


def test_an_address_is_downloaded(image):
    source = open_image('https://example.org/a.tif', lambda address: image)
    assert np.array_equal(source.read(WINDOW), image[tuple(WINDOW)])


def test_a_pyramid_is_read_at_its_full_size(image, segmentor, tmp_path):
    path = write(tmp_path / 'a.tif', image)
    with rasterio.open(path, 'r+') as file:
        file.build_overviews([2, 4])
    assert np.array_equal(open_image(path, segmentor.read).read(WINDOW), image[tuple(WINDOW)])


def test_an_image_is_normalized_as_by_the_preprocessor(image, weights):
    model = load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', full_size=True)
    result = normalized(image, model)
    sample = model.pack(model.prepare(image))
    data = {key: [value] for key, value in sample.items()}
    expected = model.module.data_preprocessor(data)['inputs'][0]
    assert result.shape == expected.shape
    assert (result[:, 5:77, 8:160] == expected[:, 5:77, 8:160]).all()
    assert result.notes == []


def in_12_bits(image: np.ndarray) -> np.ndarray:
    return (image * np.float32(4095 / 255)).round().astype(np.uint16)


@pytest.mark.parametrize(
    ('change', 'options', 'note'),
    [
        (lambda image: image.astype(np.uint16) * 257, {}, 'values from 0 to 65535 are scaled'),
        (in_12_bits, dict(nbits=12), 'values from 0 to 4095'),
        (lambda image: np.dstack([image, image[..., :1]]), {}, 'first 3 of its 4 channels'),
        (lambda image: image[..., :1], {}, None),
    ],
)
def test_16_bits_gray_and_other_channels(change, options, note, image, segmentor, tmp_path):
    path = write(tmp_path / 'a.tif', change(image), **options)
    pixels = normalized(path, segmentor, 3)
    expected = image[..., [0, 0, 0]] if note is None else image
    assert np.array_equal(pixels.pixels(WINDOW), expected[tuple(WINDOW)])
    assert bool(note) == bool(pixels.notes) and all(note in n for n in pixels.notes)


def test_a_reduced_picture_has_the_mean_of_its_pixels():
    image = np.random.default_rng(0).integers(0, 255, (130, 165, 3), np.uint8)
    picture = overview((130, 165), lambda window: image[tuple(window)], 83)
    assert picture.shape == (65, 83, 3)
    assert np.abs(picture[3, 5] - image[6:8, 10:12].mean((0, 1))).max() <= 1
    labels = overview((130, 165), lambda window: image[..., 0][tuple(window)], 83)
    assert np.array_equal(labels, image[::2, ::2, 0])
