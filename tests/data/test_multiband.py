"""TIFF images with any number of bands are read in every layout, and refused if they do not fit."""

import io

import numpy as np
import pytest
import tifffile
from helpers.planted import encoded

from xcit_mm.data.tiff import tiff_bands
from xcit_mm.data.transforms import decode as im
from xcit_mm.data.transforms import multiband as mb
from xcit_mm.data.transforms.decode import BadImageError, LoadImage, image_loader
from xcit_mm.data.transforms.multiband import LoadMultiband

HEIGHT, WIDTH, BANDS = 30, 40, 13
GRAY = dict(photometric='minisblack')
INTERLEAVED = dict(**GRAY, planarconfig='contig')


def pixels(dtype='uint16', bands=BANDS) -> np.ndarray:
    values = np.random.default_rng(0).uniform(0, 250, (HEIGHT, WIDTH, bands))
    return values.astype(dtype)


def tiff(image: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, image, **options)
    return file.getvalue()


def pages(image: np.ndarray) -> bytes:
    """One page for each band, and nothing that says that they belong together."""
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for band in np.moveaxis(image, -1, 0):
            writer.write(np.ascontiguousarray(band), **GRAY, metadata=None)
    return file.getvalue()


LAYOUTS = {
    'interleaved': lambda image: tiff(image, **INTERLEAVED),
    'planar': lambda image: tiff(np.moveaxis(image, -1, 0), **GRAY, planarconfig='separate'),
    'tiles': lambda image: tiff(image, **INTERLEAVED, tile=(16, 16)),
    # tifffile alone has no predictor of floating-point numbers.
    'deflate': lambda image: tiff(
        image, **INTERLEAVED, compression='zlib', predictor=image.dtype.kind != 'f'
    ),
    'big-endian': lambda image: tiff(image, **INTERLEAVED, byteorder='>'),
    'pages': pages,
    'rows as pages': lambda image: tiff(image, **GRAY),
}


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'int16', 'uint32', 'float32', 'float64'])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_type_and_layout_is_read_as_float32_in_the_order_of_the_file(layout, dtype):
    image = pixels(dtype)
    decoded = LoadMultiband(BANDS).decode(LAYOUTS[layout](image))
    assert decoded.dtype == np.float32 and decoded.flags.c_contiguous
    np.testing.assert_array_equal(decoded, image.astype(np.float32))


@pytest.mark.parametrize(
    ('bands', 'options'), [(1, GRAY), (2, INTERLEAVED), (3, dict(photometric='rgb')), (4, {})]
)
def test_few_bands_are_read(bands, options):
    image = pixels('uint8', bands)
    loader = LoadMultiband(bands)
    decoded = loader.decode(tiff(image[..., 0] if bands == 1 else image, **options))
    np.testing.assert_array_equal(decoded, image)
    assert loader.picture(decoded).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize('bands', [1, 2])
def test_a_thumbnail_is_not_a_band(bands):
    image, file = pixels('uint16', bands), io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for page in (*np.moveaxis(image, -1, 0), image[::4, ::4, 0], image[::4, ::4, 0] >> 8):
            writer.write(np.ascontiguousarray(page), **GRAY, metadata=None)
    np.testing.assert_array_equal(LoadMultiband(bands).decode(file.getvalue()), image)


def with_value(value: float, dtype='float32') -> bytes:
    image = pixels(dtype)
    image[2, 3, 4] = value
    return tiff(image, **INTERLEAVED)


WHOLE = tiff(pixels(), **INTERLEAVED)


@pytest.mark.parametrize(
    ('data', 'kind', 'detail'),
    [
        (b'', im.EMPTY, None),
        (encoded(pixels('uint8', 3), 'PNG'), im.UNREADABLE, 'not a TIFF file'),
        (WHOLE[: len(WHOLE) // 2], im.UNREADABLE, 'Read error .* got'),
        (tiff(pixels(), **INTERLEAVED, compression='zlib')[:-500], im.UNREADABLE, 'got'),
        (tiff(pixels(bands=4), **INTERLEAVED), mb.OTHER_BANDS, '4 instead of channels=13'),
        (tiff(pixels()[..., 0]), mb.OTHER_BANDS, '1 instead of channels=13'),
        (with_value(np.nan), mb.NOT_FINITE, 'nan=NUMBER of LoadMultiband replaces NaN'),
        (with_value(1e300, 'float64'), mb.NOT_FINITE, None),
        (tiff(pixels('complex64'), **INTERLEAVED), mb.NOT_REAL, 'complex64'),
    ],
)
def test_a_bad_image_is_named(data, kind, detail):
    with pytest.raises(BadImageError, match=detail) as error:
        LoadMultiband(BANDS).decode(data)
    assert error.value.kind == kind


def test_a_size_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(tiff_bands, 'MAX_VALUES', 1000)
    for data in (WHOLE, pages(pixels())):
        with pytest.raises(BadImageError, match=r'more than a billion values \(13 bands of 40x30'):
            LoadMultiband(BANDS).decode(data)


def test_nan_is_replaced_where_the_config_says_so():
    decoded = LoadMultiband(BANDS, nan=-1.5).decode(with_value(np.nan))
    expected = pixels('float32')
    expected[2, 3, 4] = -1.5
    np.testing.assert_array_equal(decoded, expected)
    with pytest.raises(BadImageError, match='NaN or infinite'):
        LoadMultiband(BANDS, nan=0.0).decode(with_value(np.inf))


def test_labels_are_checked_as_of_other_images(tmp_path):
    (tmp_path / 'image.tif').write_bytes(WHOLE)
    (tmp_path / 'labels.png').write_bytes(encoded(pixels('uint8', 1)[:7, :, 0], 'PNG'))
    results = dict(img_path=str(tmp_path / 'image.tif'), width=WIDTH, height=HEIGHT)
    loaded = LoadMultiband(BANDS)(results)
    assert loaded['img'].shape == (*loaded['img_shape'], BANDS) == (HEIGHT, WIDTH, BANDS)
    del results['img']
    with pytest.raises(BadImageError, match=im.LABELS_OF_OTHER_SIZE):
        LoadMultiband(BANDS)({**results, 'seg_map_path': str(tmp_path / 'labels.png')})


def test_a_picture_shows_the_bands_that_are_named_in_their_own_range():
    image = pixels('float32')
    image[..., 3] *= 100
    image[0, 0] = 1e9  # one bright pixel does not darken the others
    picture = LoadMultiband(BANDS, rgb=(3, 2, 1)).picture(image)
    assert picture.dtype == np.uint8 and picture.shape == (HEIGHT, WIDTH, 3)
    for channel, band in enumerate((3, 2, 1)):
        assert np.corrcoef(picture[1:, :, channel].ravel(), image[1:, :, band].ravel())[0, 1] > 0.99
        assert picture[1:, :, channel].std() > 60
    flat = np.zeros((HEIGHT, WIDTH, BANDS), np.float32)
    assert not LoadMultiband(BANDS).picture(flat).any()


def test_the_loader_of_joined_datasets_is_found():
    class Stub:
        def __init__(self, **attributes):
            self.__dict__ |= attributes

    loader = LoadMultiband(BANDS)
    leaf = Stub(pipeline=Stub(transforms=[Stub(), loader]))
    assert image_loader(Stub(dataset=Stub(datasets=[leaf, Stub()]))) is loader
    assert type(image_loader(Stub())) is LoadImage
