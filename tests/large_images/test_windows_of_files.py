"""Windows of images in files, and what becomes of their values."""

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.random_weights import SEGMENTOR
from PIL import Image

from xcit_mm import load_model
from xcit_mm.errors import UserError
from xcit_mm.large_images.geometry import Window
from xcit_mm.large_images.normalized import NormalizedImage
from xcit_mm.large_images.window_files import open_image, overview

WINDOW = Window(slice(33, 90), slice(17, 140))


@pytest.fixture(scope='module')
def segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', full_size=True)


def write(path, bands: np.ndarray, **options):
    """Write bands (H, W, channels) as a TIFF file by rasterio."""
    height, width, count = bands.shape
    options = dict(tiled=True, blockxsize=64, blockysize=32) | options
    with rasterio.open(
        path, 'w', 'GTiff', height=height, width=width, count=count, dtype=bands.dtype, **options
    ) as file:
        file.write(np.moveaxis(bands, -1, 0))
    return path


def png(path, image):
    Image.fromarray(image).save(path)


def npy(path, image):
    np.save(path, image)


WRITERS = {
    'tiled.tif': lambda path, image: write(path, image, compress='deflate'),
    'striped.tiff': lambda path, image: write(path, image, tiled=False),
    'planar.tif': lambda path, image: write(path, image, interleave='band'),
    'big.tif': lambda path, image: write(path, image, bigtiff='yes', compress='lzw'),
    'slide.svs': lambda path, image: tifffile.imwrite(path, image, tile=(64, 64)),
    'array.npy': npy,
    'image.png': png,
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


def test_the_normalised_image_is_that_of_the_preprocessor(image, segmentor):
    normalised = NormalizedImage(open_image(image, segmentor.read), segmentor)
    sample = segmentor.pack(segmentor.prepare(image))
    data = {key: [value] for key, value in sample.items()}
    expected = segmentor.module.data_preprocessor(data)['inputs'][0]
    assert normalised.shape == expected.shape
    assert (normalised[:, 5:77, 8:160] == expected[:, 5:77, 8:160]).all()
    assert normalised.notes == []


def test_16_bits_grey_and_more_channels(image, segmentor, tmp_path):
    def labels(name: str, pixels: np.ndarray, note: str | None, **options) -> np.ndarray:
        path = write(tmp_path / name, pixels, **options)
        notes = NormalizedImage(open_image(path, segmentor.read), segmentor).notes
        assert bool(note) == bool(notes) and all(note in n for n in notes)
        return segmentor.predict_large(path).labels

    expected = segmentor.predict_large(image).labels
    wide = labels('16.tif', image.astype(np.uint16) * 257, 'values from 0 to 65535 are scaled')
    assert np.array_equal(wide, expected)
    values = (image * np.float32(4095 / 255)).round().astype(np.uint16)
    twelve = labels('12.tif', values, 'values from 0 to 4095', nbits=12)
    assert np.array_equal(twelve, expected)
    more = np.concatenate([image, image[..., :1]], axis=2)
    assert np.array_equal(labels('4.tif', more, 'first 3 of its 4 channels'), expected)
    grey = labels('1.tif', image[..., :1], None)
    assert np.array_equal(grey, segmentor.predict_large(image[..., :1].repeat(3, 2)).labels)


def test_what_cannot_be_read_is_named(image, segmentor, tmp_path):
    def refuses(path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            segmentor.predict_large(path)

    refuses(tmp_path / 'none.tif', 'none.tif does not exist')
    (tmp_path / 'text.tif').write_text('<VRTDataset rasterXSize="9"><SRS/></VRTDataset>')
    refuses(tmp_path / 'text.tif', 'cannot be opened')
    (tmp_path / 'text.svs').write_text('no slide')
    refuses(tmp_path / 'text.svs', 'cannot be opened')
    (tmp_path / 'text.npy').write_text('no array')
    refuses(tmp_path / 'text.npy', 'cannot be opened')
    whole = write(tmp_path / 'whole.tif', image).read_bytes()
    (tmp_path / 'cut.tif').write_bytes(whole[: len(whole) * 2 // 3])
    refuses(tmp_path / 'cut.tif', r'cut.tif: rows .* cannot be read \(.*\): copy or repair')
    refuses(
        write(tmp_path / 'f.tif', image.astype(np.float32)),
        'values of type float32, but the model needs uint8 or uint16',
    )
    refuses(write(tmp_path / '2.tif', image[..., :2]), 'has 2 channels')
    refuses(np.zeros((4, 5, 6, 3), np.uint8), r'shape \(4, 5, 6, 3\) is not')
    colours = {i: (i, i, 0) for i in range(256)}
    path = write(tmp_path / 'palette.tif', image[..., :1])
    with rasterio.open(path, 'r+') as file:
        file.write_colormap(1, colours)
    refuses(path, 'has a palette: convert it')


def test_a_reduced_picture_has_the_mean_of_its_pixels():
    image = np.random.default_rng(0).integers(0, 255, (130, 165, 3), np.uint8)
    picture = overview((130, 165), lambda window: image[tuple(window)], 83)
    assert picture.shape == (65, 83, 3)
    assert np.abs(picture[3, 5] - image[6:8, 10:12].mean((0, 1))).max() <= 1
    labels = overview((130, 165), lambda window: image[..., 0][tuple(window)], 83)
    assert np.array_equal(labels, image[::2, ::2, 0])
