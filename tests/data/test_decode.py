"""Images are read as mmcv reads them; damaged ones are named, unusual ones are converted."""

import io
import os
import pickle

import cv2
import numpy as np
import pytest
import torch
from helpers.planted import encoded, rotated, sixteen_bits
from mmengine.registry import TRANSFORMS
from PIL import Image, ImageOps

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.base.errors import ArgumentError
from xcit_mm.data.transforms import decode as im
from xcit_mm.data.transforms.decode import BadImageError, LoadImage, decode, rgb_of
from xcit_mm.large.files.open_image import image_size
from xcit_mm.predict.sources import read_image, to_rgb

WIDTH, HEIGHT = 40, 30


@pytest.fixture(scope='module')
def picture() -> np.ndarray:
    """A smooth RGB image without a symmetry."""
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def difference(image: np.ndarray, rgb: np.ndarray) -> float:
    """The mean of the absolute differences, of 255."""
    return float(np.abs(image[..., ::-1].astype(int) - rgb).mean())


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'TIFF'])
def test_a_good_image_is_read_as_by_mmcv(tmp_path, picture, kind, scope):
    environment.require('mmcv')
    environment.require(f'{scope}.datasets')
    path = tmp_path / 'image'
    for orientation in (1, 3, 6):
        path.write_bytes(rotated(picture, orientation, kind))
        for to_float32 in (False, True):
            with TRANSFORMS.switch_scope_and_registry(scope) as registry:
                checked, original = (
                    registry.build(dict(type=name, to_float32=to_float32))(dict(img_path=str(path)))
                    for name in ('LoadImage', 'LoadImageFromFile')
                )
            assert checked.keys() == original.keys()
            assert checked['img'].dtype == original['img'].dtype
            np.testing.assert_array_equal(checked['img'], original['img'])
            assert checked['img_shape'] == original['img_shape'] == checked['ori_shape']


@pytest.mark.parametrize(
    ('mode', 'kind'),
    [
        *(('L', 'JPEG'), ('1', 'PNG'), ('P', 'PNG'), ('RGBA', 'PNG')),
        *(('CMYK', 'JPEG'), ('RGB', 'TGA')),  # OpenCV cannot read the last one
    ],
)
def test_every_mode_is_read_as_by_pillow(picture, mode, kind):
    image = Image.fromarray(picture).convert(mode)
    decoded = decode(encoded(image, kind))
    assert decoded.shape == (HEIGHT, WIDTH, 3) and decoded.dtype == np.uint8
    assert difference(decoded, np.asarray(image.convert('RGB'))) < 6  # that of JPEG


def test_a_transparent_color_of_a_gif_is_read_as_by_pillow(picture):
    data = encoded(Image.fromarray(picture).quantize(64), 'GIF', transparency=3)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decode(data)[..., ::-1], image.convert('RGB'))


def test_16_bits_become_8(picture):
    gray = picture[..., :1]
    for channels in (gray, picture):
        deep = cv2.imencode('.tiff', channels[..., ::-1].astype(np.uint16) * 257)[1].tobytes()
        for data in (deep, sixteen_bits(channels)):
            assert difference(decode(data), channels) < 1
    deep = Image.fromarray(gray[..., 0].astype(np.uint16) * 257)
    np.testing.assert_array_equal(to_rgb(deep)[..., 0], gray[..., 0])


@pytest.mark.parametrize('dtype', ['u1', '<u2', '>u2'])
@pytest.mark.parametrize('channels', [(), (1,), (3,), (4,)])
def test_an_array_has_the_values_of_a_file_of_it(channels, dtype):
    rng = np.random.default_rng(0)
    array = rng.integers(0, np.iinfo(dtype).max, (HEIGHT, WIDTH, *channels), endpoint=True)
    array = array.astype(dtype)
    as_bgr = array.astype(array.dtype.newbyteorder('='))
    if channels in ((3,), (4,)):
        as_bgr = as_bgr[..., [2, 1, 0, 3][: channels[0]]]
    read = decode(cv2.imencode('.png', as_bgr)[1].tobytes())[..., ::-1]
    found = to_rgb(array)
    np.testing.assert_array_equal(found, read)
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    if dtype == 'u1':
        pillow = to_rgb(Image.fromarray(array[..., 0] if channels == (1,) else array))
        np.testing.assert_array_equal(pillow, read)


@pytest.mark.parametrize(
    ('array', 'what'),
    [
        (np.zeros((4, 5, 2), np.uint8), r'not \(4, 5, 2\) of uint8'),
        (np.zeros((4, 5), np.float32), r'not \(4, 5\) of float32'),
        (torch.zeros((4, 5, 3), dtype=torch.uint8), 'of torch.uint8'),
        ([[0, 1]], r'not \(\) of list'),
    ],
)
def test_other_arrays_are_refused(array, what):
    with pytest.raises(ArgumentError, match=f'array of type uint8 or uint16 and of .*{what}'):
        to_rgb(array)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'AVIF'])
def test_exif_orientation_is_followed_except_for_annotations_of_the_stored_image(
    picture, kind, tmp_path
):
    if f'.{kind.lower()}' not in Image.registered_extensions():
        pytest.skip(f'Pillow has no {kind}')
    tolerance = 3 if kind == 'AVIF' else 0  # two decoders
    for orientation in range(1, 9):
        data = rotated(picture, orientation, kind)
        stored = np.asarray(Image.open(io.BytesIO(data)))
        upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        for annotated in (None, upright.shape[1::-1]):
            assert difference(decode(data, annotated), upright) <= tolerance
            assert im.size_of(io.BytesIO(data), annotated) == upright.shape[1::-1]
        expected = stored if orientation > 4 else upright  # the others have the same size
        assert difference(decode(data, (WIDTH, HEIGHT)), expected) <= tolerance
        assert im.size_of(io.BytesIO(data), (WIDTH, HEIGHT)) == (WIDTH, HEIGHT)
        path = tmp_path / 'a'
        path.write_bytes(data)
        assert difference(to_rgb(path)[..., ::-1], to_rgb(Image.open(path))) <= tolerance
        assert image_size(str(path)) == upright.shape[:2]


def cut(kind, share=0.5, **kwargs):
    rng = np.random.default_rng(0)
    data = encoded(rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8), kind, **kwargs)
    return data[: int(len(data) * share)]


@pytest.mark.parametrize(
    ('data', 'kind'),
    [
        (b'', im.EMPTY),
        (b'<html>', im.UNREADABLE),
        (b'\xff\xd8\xff\xd9', im.UNREADABLE),
        *((cut('JPEG', share), im.CUT_OFF) for share in (0.3, 0.6, 0.99)),
        (cut('JPEG', progressive=True), im.CUT_OFF),
        *((cut(kind), im.CUT_OFF) for kind in ('PNG', 'BMP', 'GIF')),
        (cut('TIFF', 0.9), im.UNREADABLE),
        (cut('WEBP'), im.UNREADABLE),
    ],
)
def test_a_bad_image_is_named(data, kind, capfd):
    with pytest.raises(BadImageError) as error:
        decode(data)
    assert error.value.kind == kind
    assert capfd.readouterr() == ('', '')  # OpenCV and GDAL would log what is wrong


def test_a_truncated_image_is_found_by_older_opencv_and_with_a_thumbnail(monkeypatch, picture):
    whole = encoded(picture)
    thumbnail = b'\xff\xe1' + (2 + len(whole)).to_bytes(2, 'big') + whole  # an APP1 segment
    data = whole[:2] + thumbnail + whole[2:]
    assert difference(decode(data), picture) < 6
    np.testing.assert_array_equal(decode(data + b'\0' * 100), decode(data))
    # OpenCV before 4.11 reads truncated files.
    monkeypatch.setattr(cv2, 'imdecode', lambda data, flags: np.zeros((5, 5, 3), np.uint8))
    for truncated in (data[:-200], cut('JPEG')):
        with pytest.raises(BadImageError, match='it is cut off'):
            decode(truncated)


def test_only_regular_files_are_read(tmp_path):
    pipe, large = tmp_path / 'pipe.jpg', tmp_path / 'large.jpg'
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, im.MAX_BYTES + 1)
    for path, reason in (
        (tmp_path / 'gone.jpg', 'No such file'),
        (tmp_path, 'Is a directory'),
        (pipe, 'Not a regular file'),
        ('/dev/zero', 'Not a regular file'),
        (large, 'File too large'),
    ):
        with pytest.raises(BadImageError, match=f'it is missing or cannot be opened: {reason}'):
            LoadImage()(dict(img_path=str(path)))
    with pytest.raises(UserError, match=r'cannot be opened \(OSError: .*Not a regular file'):
        read_image(str(pipe))
    with pytest.raises(BadImageError, match=r'its label file .*Not a regular file'):
        LoadImage()(dict(img_path='a.jpg', seg_map_path=str(pipe)))


def test_images_of_another_size_and_labels_that_do_not_fit_are_bad(tmp_path, picture):
    def load(labels: bytes, image: bytes | None = None, **results) -> dict:
        path, label_path = tmp_path / 'image.png', tmp_path / 'labels.png'
        path.write_bytes(image or encoded(picture, 'PNG'))
        label_path.write_bytes(labels)
        return LoadImage()(dict(img_path=str(path), seg_map_path=str(label_path), **results))

    good = encoded(picture[..., 0], 'PNG')
    load(good, width=WIDTH, height=HEIGHT)
    for width, height in ((WIDTH, HEIGHT + 1), (HEIGHT, WIDTH)):
        with pytest.raises(BadImageError, match=r'not of the annotated size: 40x30 pixels instead'):
            load(good, width=width, height=height)
    with pytest.raises(BadImageError, match=im.LABELS_MISSING):
        LoadImage()(dict(img_path='image.png', seg_map_path='gone.png'))
    for bad in (b'', b'no', good[:50], good[: len(good) // 2]):
        with pytest.raises(BadImageError, match=im.LABELS_UNREADABLE):
            load(bad)
    with pytest.raises(BadImageError, match=r'size of its labels: 40x30 pixels instead of 7x30'):
        load(encoded(picture[:, :7, 0], 'PNG'))
    for stored in (picture[..., 0], picture[..., 0].T):  # labels say which way up the image is
        assert load(encoded(stored, 'PNG'), rotated(picture, 6))['img_shape'] == stored.shape


def test_a_decoded_image_is_taken():
    image = np.zeros((3, 1, 3), np.uint8)
    assert LoadImage()(dict(img=image, img_path='gone'))['img'] is image
    with pytest.raises(BadImageError, match=im.NO_PIXELS) as error:
        LoadImage()(dict(img=image[:0]))
    assert pickle.loads(pickle.dumps(error.value)).kind == im.NO_PIXELS  # sent by a worker


def test_an_image_of_an_array_does_not_share_its_memory():
    array = np.ones((4, 5, 3), np.uint8)
    image = rgb_of(array)
    assert not np.shares_memory(image, array)
    assert image.shape == (4, 5, 3) and image.flags.c_contiguous and image.flags.writeable
