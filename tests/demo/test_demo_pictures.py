"""Pictures that visitors send: read upright and small, or refused."""

import struct

import cv2
import numpy as np
import pytest
from helpers.demo_page import MAX_UPLOAD
from PIL import Image

from xcit_mm.demo import pictures
from xcit_mm.errors import UserError


def test_a_large_picture_is_shrunk_and_a_huge_one_refused(tmp_path, monkeypatch):
    path = tmp_path / 'wide.png'
    image = np.zeros((300, 4096, 3), np.uint8)
    image[:, :2048, 0] = 255  # red
    Image.fromarray(image).save(path)
    read = pictures.read_picture(str(path), MAX_UPLOAD)
    assert read.shape == (150, 2048, 3)
    assert (read[:, :1000] == (255, 0, 0)).all()
    assert not read[:, 1100:].any()

    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500_000)
    with pytest.raises(UserError, match=r'wide\.png cannot be used: it has more than 1 million'):
        pictures.read_picture(str(path), MAX_UPLOAD)
    with pytest.raises(UserError, match=r'wide\.png cannot be used: it has more than 0\.001 MB'):
        pictures.read_picture(str(path), 0.001)


def test_a_picture_is_decoded_by_what_measured_it(tmp_path):
    """A TIFF with two widths: OpenCV takes the first one, Pillow the last."""
    tags = {256: [3000, 3], 257: [3000], 259: [1], 262: [1], 258: [8], 273: [8], 277: [1]}
    tags |= {278: [3000], 279: [3000 * 3000]}
    entries = [(tag, value) for tag in sorted(tags) for value in tags[tag]]
    pixels = bytes(3000 * 3000)
    path = tmp_path / 'two.tif'
    path.write_bytes(
        struct.pack('<2sHI', b'II', 42, 8 + len(pixels))
        + pixels
        + struct.pack('<H', len(entries))
        + b''.join(struct.pack('<HHII', tag, 4, 1, value) for tag, value in entries)
        + bytes(4)
    )
    assert cv2.imread(str(path)).shape == (3000, 3000, 3)
    assert pictures.read_picture(str(path), max_upload=20).shape == (2048, 2, 3)


@pytest.mark.parametrize('kind', ['BMP', 'GIF', 'JPEG', 'PNG', 'TIFF', 'WEBP'])
def test_pictures_of_a_browser_are_read_upright(tmp_path, kind):
    path = tmp_path / 'picture'
    colours = np.zeros((20, 30, 3), np.uint8)
    colours[:, :15] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    options = dict(exif=exif) if kind in ('JPEG', 'PNG', 'TIFF', 'WEBP') else {}
    Image.fromarray(colours).save(path, kind, **options)
    expected = np.rot90(colours, -1) if options else colours
    read = pictures.read_picture(str(path), MAX_UPLOAD)
    assert read.shape == expected.shape
    assert np.abs(read.astype(int) - expected).mean() < 3
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match='picture cannot be used: it is'):
        pictures.read_picture(str(path), MAX_UPLOAD)
