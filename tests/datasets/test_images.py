"""Images are read as mmcv reads them; what is bad is said, what can be converted is."""

import io
import os
import pickle

import cv2
import numpy as np
import pytest
from helpers.planted import encoded, no_pixels, rotated, sixteen_bits
from mmengine.registry import TRANSFORMS
from PIL import Image, ImageOps

from xcit_mm import UserError, environment
from xcit_mm.datasets import images as im
from xcit_mm.datasets.images import BadImageError, LoadImage, conversions, decode
from xcit_mm.inference.sources import read_image, to_rgb

WIDTH, HEIGHT = 40, 30


@pytest.fixture(scope='module')
def picture() -> np.ndarray:
    """Smooth, RGB, without a symmetry."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def difference(image: np.ndarray, rgb: np.ndarray) -> float:
    """Mean of the absolute differences, of 255."""
    return float(np.abs(image[..., ::-1].astype(int) - rgb).mean())


@pytest.mark.parametrize('orientation', [1, 3, 6])
@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'BMP', 'TIFF', 'WEBP'])
@pytest.mark.parametrize('to_float32', [False, True])
def test_a_good_image_is_read_as_by_mmcv(tmp_path, picture, kind, orientation, to_float32):
    environment.require('mmcv')
    from mmcv.transforms import LoadImageFromFile

    path = tmp_path / 'image'
    path.write_bytes(
        encoded(picture, kind) if kind == 'BMP' else rotated(picture, orientation, kind)
    )
    ours, theirs = (
        transform(to_float32=to_float32)(dict(img_path=str(path)))
        for transform in (LoadImage, LoadImageFromFile)
    )
    assert ours.keys() == theirs.keys()
    assert ours['img'].dtype == theirs['img'].dtype
    np.testing.assert_array_equal(ours['img'], theirs['img'])
    assert ours['img_shape'] == theirs['img_shape'] and ours['ori_shape'] == theirs['ori_shape']


def test_the_transform_is_found_from_both_frameworks():
    for scope in ('mmdet', 'mmseg'):
        environment.require(f'{scope}.datasets')
        with TRANSFORMS.switch_scope_and_registry(scope) as registry:
            assert isinstance(registry.build(dict(type='LoadImage')), LoadImage)


def as_mode(picture, mode, kind='PNG'):
    return encoded(Image.fromarray(picture).convert(mode), kind)


@pytest.mark.parametrize(
    ('mode', 'kind', 'notes'),
    [
        ('RGB', 'PNG', []),
        ('RGB', 'JPEG', []),
        ('RGB', 'TIFF', []),
        ('L', 'JPEG', [im.GRAYSCALE]),
        ('1', 'PNG', [im.GRAYSCALE]),
        ('LA', 'PNG', [im.GRAYSCALE, im.ALPHA]),
        ('P', 'PNG', [im.PALETTE]),
        ('RGBA', 'PNG', [im.ALPHA]),
        ('CMYK', 'JPEG', [im.CMYK]),
        ('CMYK', 'TIFF', [im.CMYK]),
        ('RGB', 'TGA', []),  # which OpenCV cannot read
    ],
)
def test_every_mode_is_read_as_pil_reads_it(picture, mode, kind, notes):
    data = as_mode(picture, mode, kind)
    image = decode(data)
    expected = np.asarray(Image.fromarray(picture).convert(mode).convert('RGB'))
    assert image.shape == (HEIGHT, WIDTH, 3) and image.dtype == np.uint8
    assert difference(image, expected) < 6  # that of JPEG
    assert conversions(data) == notes


@pytest.mark.parametrize('extension', ['.png', '.tiff'])
@pytest.mark.parametrize('channels', [1, 3])
def test_16_bits_become_8(picture, extension, channels):
    picture = np.repeat(picture[..., :1], 3, axis=2) if channels == 1 else picture
    deep = (picture[..., 0] if channels == 1 else picture[..., ::-1]).astype(np.uint16) * 257
    data = cv2.imencode(extension, deep)[1].tobytes()
    assert difference(decode(data), picture) < 1
    assert im.SIXTEEN_BITS in conversions(data)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
@pytest.mark.parametrize('orientation', range(1, 9))
def test_the_rotation_of_exif_is_followed_but_for_annotations_of_the_raster(
    picture, orientation, kind
):
    data = rotated(picture, orientation, kind)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    turns = orientation > 4
    assert decode(data).shape[:2] == ((WIDTH, HEIGHT) if turns else (HEIGHT, WIDTH))
    for annotated in (None, upright.shape[1::-1]):
        assert difference(decode(data, annotated), upright) == 0
    stored = np.asarray(Image.open(io.BytesIO(data)))
    expected = stored if turns else upright  # without a turn the size does not tell
    assert difference(decode(data, (WIDTH, HEIGHT)), expected) == 0
    assert conversions(data) == ([im.ROTATED] if orientation > 1 else [])


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
        (no_pixels(), im.UNREADABLE),
        *((cut('JPEG', share), im.CUT_OFF) for share in (0.3, 0.6, 0.9, 0.99)),
        (cut('JPEG', progressive=True), im.CUT_OFF),
        (cut('PNG'), im.CUT_OFF),
        (cut('BMP'), im.CUT_OFF),
        (cut('TIFF', 0.9), im.CUT_OFF),
        (cut('WEBP'), im.UNREADABLE),
        (cut('GIF'), im.CUT_OFF),
    ],
)
def test_what_is_bad_is_said(tmp_path, data, kind):
    path = tmp_path / 'image.jpg'
    path.write_bytes(data)
    with pytest.raises(BadImageError) as error:
        LoadImage()(dict(img_path=str(path)))
    assert error.value.kind == kind
    assert str(tmp_path) not in str(error.value)


def older_opencv(data: bytes, flags: int) -> np.ndarray:
    """It reads a file that is cut off, too."""
    return np.zeros((5, 5, 3), np.uint8)


def test_a_cut_off_jpeg_with_the_end_of_a_thumbnail_in_it_is_cut_off(monkeypatch, picture):
    whole = encoded(picture)
    thumbnail = b'\xff\xe1' + (2 + len(whole)).to_bytes(2, 'big') + whole  # an APP1 segment
    data = whole[:2] + thumbnail + whole[2:]
    assert difference(decode(data), picture) < 6
    monkeypatch.setattr(im, '_decode_with_cv2', older_opencv)
    with pytest.raises(BadImageError, match='it is cut off'):
        decode(data[:-200])


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
def test_bytes_behind_the_end_are_no_matter(picture, kind):
    data = encoded(picture, kind)
    np.testing.assert_array_equal(decode(data + b'\0' * 100), decode(data))


def test_older_opencv_changes_nothing(monkeypatch):
    monkeypatch.setattr(im, '_decode_with_cv2', older_opencv)
    with pytest.raises(BadImageError, match='it is cut off'):
        decode(cut('JPEG'))


def test_16_bits_of_pil_become_8(picture):
    deep = Image.fromarray(picture[..., 0].astype(np.uint16) * 257)
    np.testing.assert_array_equal(to_rgb(deep)[..., 0], picture[..., 0])


def test_a_missing_file_and_a_folder_are_bad_images(tmp_path):
    with pytest.raises(BadImageError, match=r'it is missing or cannot be opened: No such file'):
        LoadImage()(dict(img_path=str(tmp_path / 'gone.jpg')))
    with pytest.raises(BadImageError, match=r'cannot be opened: Is a directory'):
        LoadImage()(dict(img_path=str(tmp_path)))


def test_what_is_no_regular_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / 'pipe.jpg')
    for path in (tmp_path / 'pipe.jpg', '/dev/zero'):
        with pytest.raises(BadImageError, match=r'cannot be opened: Not a regular file'):
            LoadImage()(dict(img_path=str(path)))
        with pytest.raises(UserError, match=r'cannot be opened \(OSError: .*Not a regular file'):
            read_image(str(path))
    with pytest.raises(BadImageError, match=r'its label file .*Not a regular file'):
        LoadImage()(dict(img_path='a.jpg', seg_map_path=str(tmp_path / 'pipe.jpg')))
    (tmp_path / 'sparse.jpg').touch()
    os.truncate(tmp_path / 'sparse.jpg', im.MAX_BYTES + 1)
    with pytest.raises(BadImageError, match=r'cannot be opened: File too large'):
        LoadImage()(dict(img_path=str(tmp_path / 'sparse.jpg')))


def test_another_size_than_the_annotated_one_is_bad(tmp_path, picture):
    path = tmp_path / 'image.png'
    path.write_bytes(encoded(picture, 'PNG'))
    LoadImage()(dict(img_path=str(path), width=WIDTH, height=HEIGHT))
    for size in ((WIDTH, HEIGHT + 1), (HEIGHT, WIDTH)):
        with pytest.raises(BadImageError, match=r'not of the annotated size: 40x30 pixels instead'):
            LoadImage()(dict(img_path=str(path), width=size[0], height=size[1]))


def test_an_image_of_one_pixel_across_is_good(tmp_path, picture):
    path = tmp_path / 'image.png'
    path.write_bytes(encoded(picture[:, :1], 'PNG'))
    assert LoadImage()(dict(img_path=str(path)))['img'].shape == (HEIGHT, 1, 3)


def labelled(tmp_path, picture, labels: bytes | None, image: bytes | None = None) -> dict:
    path, label_path = tmp_path / 'image.png', tmp_path / 'labels.png'
    path.write_bytes(image or encoded(picture, 'PNG'))
    if labels is not None:
        label_path.write_bytes(labels)
    return LoadImage()(dict(img_path=str(path), seg_map_path=str(label_path)))


def test_labels_that_do_not_fit_are_bad(tmp_path, picture):
    good = encoded(picture[..., 0], 'PNG')
    assert labelled(tmp_path, picture, good)['img_shape'] == (HEIGHT, WIDTH)
    (tmp_path / 'labels.png').unlink()
    with pytest.raises(BadImageError, match=im.LABELS_MISSING):
        labelled(tmp_path, picture, None)
    for bad in (b'', b'no', good[:50], good[: len(good) // 2]):
        with pytest.raises(BadImageError, match=im.LABELS_UNREADABLE):
            labelled(tmp_path, picture, bad)
    with pytest.raises(BadImageError, match=r'size of its labels: 40x30 pixels instead of 7x30'):
        labelled(tmp_path, picture, encoded(picture[:, :7, 0], 'PNG'))


@pytest.mark.parametrize('value', [255, 256, 300, 65535])
@pytest.mark.parametrize('of_mmseg', [False, True])
def test_labels_that_mmseg_would_cut_are_bad(tmp_path, picture, value, of_mmseg):
    path, label_path = tmp_path / 'image.png', tmp_path / 'labels.png'
    path.write_bytes(encoded(picture, 'PNG'))
    labels = np.zeros((HEIGHT, WIDTH), np.uint16)
    labels[3, 4] = value
    Image.fromarray(labels).save(label_path)
    sample = dict(img_path=str(path), seg_map_path=str(label_path))
    sample |= dict(reduce_zero_label=False) if of_mmseg else {}
    if value > 255 and of_mmseg:
        with pytest.raises(BadImageError, match=rf'{im.LABELS_TOO_LARGE}: {value}'):
            LoadImage()(sample)
    else:
        assert LoadImage()(sample)['img_shape'] == (HEIGHT, WIDTH)


def test_labels_tell_whether_an_image_is_to_be_rotated(tmp_path, picture):
    labels = picture[..., 0]
    for raster in (labels, labels.T):
        given = labelled(tmp_path, picture, encoded(raster, 'PNG'), rotated(picture, 6))
        assert given['img_shape'] == raster.shape


def test_a_decoded_image_is_taken():
    image = np.zeros((3, 4, 3), np.uint8)
    assert LoadImage()(dict(img=image, img_path='gone'))['img'] is image
    with pytest.raises(BadImageError, match=im.NO_PIXELS):
        LoadImage()(dict(img=np.zeros((0, 4, 3), np.uint8)))


def test_the_error_survives_the_way_from_another_process():
    error = pickle.loads(pickle.dumps(BadImageError(im.OTHER_SIZE, '1x2')))
    assert (error.kind, str(error)) == (im.OTHER_SIZE, f'{im.OTHER_SIZE}: 1x2')


def test_16_bit_files_of_the_planted_data_are_16_bit(picture):
    assert conversions(sixteen_bits(picture)) == [im.SIXTEEN_BITS]
