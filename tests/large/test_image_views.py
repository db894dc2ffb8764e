"""Images that are flipped, turned and distorted window by window, against the whole array."""

from itertools import product

import numpy as np
import pytest
import rasterio
import torch
from mmseg.datasets.transforms import PhotoMetricDistortion
from mmseg.models import SegDataPreProcessor

from xcit_mm.base.geometry import Window, whole
from xcit_mm.large.data.color_distortion import ColorDistortion, DistortedImage
from xcit_mm.large.data.scene_transforms import DistortColors
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.normalized_image import NormalizedImage
from xcit_mm.large.files.open_image import open_image
from xcit_mm.large.files.symmetries import Symmetry, TurnedImage

SYMMETRIES = [Symmetry(*flags) for flags in product((False, True), repeat=3)]
WINDOW = Window(slice(3, 38), slice(12, 41))
DISTORTION = ColorDistortion(-10.5, 1.3, True, 1.2, -7)


@pytest.fixture(scope='module')
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (45, 64, 3), np.uint8)


@pytest.fixture(scope='module')
def strips(pixels, tmp_path_factory):
    """A file in strips of four rows."""
    path = tmp_path_factory.mktemp('strips') / 'a.tif'
    options = dict(height=45, width=64, count=3, dtype='uint8', tiled=False, blockysize=4)
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(np.moveaxis(pixels, -1, 0))
    return open_image(path, str)


def test_the_eight_symmetries_are_flips_and_quarter_turns(pixels):
    turned = {symmetry.array(pixels).tobytes() for symmetry in SYMMETRIES}
    expected = {
        np.rot90(image, turns).tobytes()
        for image in (pixels, pixels[:, ::-1])
        for turns in range(4)
    }
    assert turned == expected and len(turned) == 8


@pytest.mark.parametrize('symmetry', SYMMETRIES, ids=str)
def test_a_window_of_a_turned_image(symmetry, strips, pixels):
    image, expected = TurnedImage(strips, symmetry), symmetry.array(pixels)
    assert image.shape == expected.shape
    assert np.array_equal(image.read(WINDOW), expected[tuple(WINDOW)])
    assert image.read(WINDOW).flags.c_contiguous
    windows = [expected[tuple(w)].size for w in image.windows()]
    assert sum(windows) == expected.size
    assert image.max_rows == (None if symmetry.is_transposed else strips.max_rows)


@pytest.mark.parametrize('symmetry', SYMMETRIES, ids=str)
def test_boxes_and_points_turn_with_the_image(symmetry):
    image = np.zeros((9, 14), bool)
    image[2:5, 7:13] = True
    y, x = np.nonzero(symmetry.array(image))
    box = symmetry.boxes(np.array([[7, 2, 13, 5]], np.float32), image.shape)
    assert box.tolist() == [[x.min(), y.min(), x.max() + 1, y.max() + 1]]
    point = symmetry.points(np.array([[7.25, 2.5]]), image.shape)[0]
    assert np.abs(point - symmetry.points(np.array([[7.0, 2]]), image.shape)[0]).max() == 0.5
    assert np.all((box[0, :2] <= point) & (point <= box[0, 2:]))


@pytest.mark.parametrize('seed', range(4))
def test_colors_are_distorted_as_by_mmseg(seed, pixels):
    image = Array(pixels, 'the array')  # rows of 64 pixels, whole vectors of OpenCV
    np.random.seed(seed)
    expected = PhotoMetricDistortion()(dict(img=pixels[..., ::-1].copy()))['img'][..., ::-1]
    after = np.random.random()
    np.random.seed(seed)
    view = DistortColors()(dict(img=image, bands=None))['img']
    assert np.array_equal(view.read(whole((45, 64))), expected)
    assert np.random.random() == after


def test_the_distortion_of_a_window_is_the_window_of_the_distortion(pixels):
    view = DistortedImage(Array(pixels, 'the array'), DISTORTION)
    distorted = view.read(whole((45, 64)))
    assert (distorted != pixels).any(axis=(0, 1)).all()
    for size in (1, 7, 29, 33):
        window = Window(slice(5, 5 + size), slice(11, 11 + size))
        assert np.array_equal(view.read(window), distorted[tuple(window)])


@pytest.mark.parametrize('symmetry', SYMMETRIES[::3], ids=str)
def test_views_are_normalized_as_the_whole_image(symmetry, strips, pixels):
    numbers = dict(mean=[120.0, 110, 100], std=[58.0, 57, 56])
    preprocessor = SegDataPreProcessor(**numbers, bgr_to_rgb=True)
    view = TurnedImage(DistortedImage(strips, DISTORTION), symmetry)
    image = NormalizedImage(view, preprocessor, [], None)
    changed = symmetry.array(DISTORTION(pixels)).transpose(2, 0, 1)[::-1]  # BGR
    expected = preprocessor(dict(inputs=[torch.from_numpy(changed.copy())]))['inputs'][0]
    assert image.size == expected.shape[1:] and image.notes == []
    assert torch.equal(image[(slice(None), *WINDOW)], expected[(slice(None), *WINDOW)])


def test_symmetries_and_distortions_belong_to_the_identity_of_an_image(strips):
    turned, original = (TurnedImage(strips, symmetry) for symmetry in (SYMMETRIES[3], Symmetry()))
    distorted = [DistortedImage(turned, DISTORTION._replace(hue=hue)) for hue in (3, 4)]
    images = [turned, original, *distorted]
    assert len({str(image.identity()) for image in images}) == 4


def test_values_of_16_bits_are_distorted_as_8_bits(pixels):
    wide = DistortedImage(Array(pixels.astype(np.uint16) * 257, 'wide'), DISTORTION)
    narrow = DistortedImage(Array(pixels, 'narrow'), DISTORTION)
    assert np.array_equal(wide.read(WINDOW), narrow.read(WINDOW))
