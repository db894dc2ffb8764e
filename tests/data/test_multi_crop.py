"""Crops of images with any number of bands: what they show, their colors and their randomness."""

import cv2
import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from xcit_mm.base.errors import ArgumentError
from xcit_mm.data.datasets.samples import seed_all
from xcit_mm.data.transforms import multi_crop
from xcit_mm.data.transforms.image_transforms import PackImage
from xcit_mm.data.transforms.multi_crop import MultiCrop

SMALL = dict(global_size=32, local_size=16, num_local=3)
PLAIN = SMALL | dict(color='none')


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_all(0)


@pytest.fixture
def without_blur(monkeypatch) -> None:
    monkeypatch.setattr(multi_crop, '_blurred', lambda crop, probability: crop)


def image_of(shape, dtype=np.uint8, low=0, high=256) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, shape).astype(dtype)


def crops_of(image: np.ndarray, **arguments) -> tuple[torch.Tensor, ...]:
    return MultiCrop(**SMALL | arguments)(dict(img=image))['crops']


@pytest.mark.parametrize(
    ('shape', 'dtype'),
    [
        ((40, 61, 3), np.uint8),
        ((33, 47, 3), np.float32),
        ((64, 64, 1), np.uint8),
        ((50, 37, 13), np.float32),
        ((7, 5, 2), np.uint8),
        ((1, 1, 4), np.float32),
    ],
)
def test_images_of_any_size_type_and_number_of_bands_are_cropped(shape, dtype):
    image = image_of(shape, dtype)
    for _ in range(10):
        large, small = crops_of(image)
        assert large.shape == (2, shape[2], 32, 32) and small.shape == (3, shape[2], 16, 16)
        assert large.dtype == small.dtype == getattr(torch, np.dtype(dtype).name)
        assert large.isfinite().all() and small.isfinite().all()
    packed = PackImage()(dict(img=image, img_path='a.png', ori_shape=(9, 9), crops=(large, small)))
    assert packed['inputs'][0] is large and packed['inputs'][1] is small
    assert len(crops_of(image, num_local=0)) == 1


def test_a_crop_is_the_resized_part_that_it_claims_to_be(without_blur, monkeypatch):
    """Two bands hold the row and the column, so that a crop says where it was cut out."""
    rows, columns = np.mgrid[:200, :300].astype(np.float32)
    image = np.stack([rows, columns], axis=-1)
    ranges = {0: (0.25, 1.0), 1: (0.05, 0.25)}
    orders = set()
    for _ in range(40):
        for group, crops in enumerate(crops_of(image, color='none', vertical=0.5)):
            for row, column in crops:
                assert torch.allclose(row, row[:, :1].expand_as(row), atol=0.01)
                assert torch.allclose(column, column[:1].expand_as(column), atol=0.01)
                steps = row[1:, 0].diff()[2:-2], column[0, 1:].diff()[2:-2]
                orders.add(tuple(bool(s.mean() > 0) for s in steps))
                height, width = (abs(float(s.mean())) * len(row) for s in steps)
                low, high = ranges[group]
                assert 0.9 * low <= height * width / image[..., 0].size <= 1.1 * high
                assert 0.7 <= width / height <= 1.4  # of 3/4 to 4/3
    assert len(orders) == 4  # mirrored in both directions, or not
    monkeypatch.setattr(multi_crop, '_resized_crop', lambda *_: torch.nn.Identity())
    unchanged = MultiCrop(color='none', flip=0)(dict(img=image))['crops'][0][0]
    assert np.array_equal(unchanged.permute(1, 2, 0), image)


def test_the_colors_of_rgb_images_change_as_torchvision_changes_them(without_blur, monkeypatch):
    """The loader is BGR: the change gets and returns RGB."""
    image = np.zeros((8, 8, 3), np.uint8)
    image[..., 2] = 200  # red
    transform = MultiCrop(**SMALL)
    seen = []
    transform.change_rgb = lambda crop: (seen.append(crop), F.adjust_hue(crop, 1 / 3))[1]
    monkeypatch.setattr(transform, 'solarize', lambda crop: crop)
    large, _ = transform(dict(img=image))['crops']
    assert seen[0][:, 0, 0].tolist() == [200, 0, 0]
    assert large[0, :, 0, 0].tolist() == [0, 200, 0]  # green


def test_gray_and_solarized_images_and_blur_are_as_frequent_as_in_dino(monkeypatch):
    image = np.full((24, 24, 3), (200, 220, 250), np.uint8)
    transform = MultiCrop(**SMALL)
    jitter = transform.change_rgb.transforms[0]
    transform.change_rgb.transforms[0] = torch.nn.Identity()
    blurs = []
    monkeypatch.setattr(multi_crop, '_blurred', lambda crop, p: (blurs.append(p), crop)[1])
    gray, solarized = [], [0, 0]
    for _ in range(300):
        large, small = transform(dict(img=image))['crops']
        gray += [bool((crop == crop[:1]).all()) for crop in (*large, *small)]
        solarized = [n + bool(c.max() < 128) for n, c in zip(solarized, large, strict=True)]
    assert blurs == [1.0, 0.1, 0.5, 0.5, 0.5] * 300
    assert np.mean(gray) == pytest.approx(0.2, abs=0.04)
    assert solarized[0] == 0 and solarized[1] / 300 == pytest.approx(0.2, abs=0.07)
    original = torch.from_numpy(image_of((8, 8, 3))).permute(2, 0, 1)
    changes = [bool((jitter(original) != original).any()) for _ in range(300)]
    assert np.mean(changes) == pytest.approx(0.8, abs=0.08)


def test_blur_is_gaussian_for_any_number_of_bands(monkeypatch):
    crop = torch.from_numpy(image_of((16, 20, 5), np.float32)).permute(2, 0, 1)
    strengths = []
    original = cv2.GaussianBlur

    def record(image, kernel, sigma):
        strengths.append(sigma)
        return original(image, kernel, sigma)

    monkeypatch.setattr(cv2, 'GaussianBlur', record)
    for _ in range(50):
        blurred = multi_crop._blurred(crop, 1.0)
        sigma = strengths[-1]
        expected = F.gaussian_blur(crop, [2 * round(4 * sigma) + 1] * 2, [sigma] * 2)
        inner = (..., slice(9, -9), slice(9, -9))  # the borders differ
        assert torch.allclose(blurred[inner], expected[inner], rtol=0.02, atol=1)
    assert 0.1 <= min(strengths) < 0.4 and 1.7 < max(strengths) <= 2.0
    assert multi_crop._blurred(crop, 0.0) is crop


def test_gain_and_offset_of_bands_are_relative_to_their_spread(without_blur):
    """The same image in other units has the same crops in those units."""
    first = image_of((40, 40, 6), np.float32, 0, 1)
    factors, offsets = np.float32([1, 10, 1e3, 1e4, 1e-3, 7]), np.float32([0, 5, -100, 1e4, 1, 3])
    pairs = []
    for image in (first, first * factors + offsets):
        torch.manual_seed(3)
        pairs.append(MultiCrop(**SMALL)(dict(img=image))['crops'])
    scale = torch.from_numpy(factors).view(-1, 1, 1)
    shift = torch.from_numpy(offsets).view(-1, 1, 1)
    for a, b in zip(*pairs, strict=True):
        assert torch.allclose((b - shift) / scale, a, atol=0.02)


def test_all_bands_change_together_and_each_a_little(without_blur):
    image = image_of((40, 40, 8), np.float32, -1, 1)
    transform = MultiCrop(**SMALL | dict(num_local=0))
    transform.cut_global = torch.nn.Identity()
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    spread, mean = torch.std_mean(tensor, (1, 2), correction=0)
    gains, offsets = [], []
    for _ in range(400):
        crop = transform(dict(img=image))['crops'][0][0]
        gains.append(crop.std((1, 2), correction=0) / spread)
        offsets.append((crop.mean((1, 2)) - mean) / spread)
    gains, offsets = torch.stack(gains), torch.stack(offsets)
    unchanged = (gains - 1).abs().amax(1) < 1e-4
    assert unchanged.float().mean() == pytest.approx(0.2, abs=0.08)
    assert 0.6 * 0.9 - 1e-3 < gains.min() < 0.65 and 1.35 < gains.max() < 1.4 * 1.1 + 1e-3
    assert 0.4 < offsets.abs().max() < 0.5 + 1e-3
    assert gains.std(1)[~unchanged].mean() < 0.12 and gains.mean(1).std() > 0.15
    assert gains.std(1)[~unchanged].min() > 0  # each band has a gain of its own


def test_values_of_8_bits_stay_in_their_range(without_blur):
    image = np.zeros((20, 20, 4), np.uint8)
    image[10:] = 255
    for _ in range(30):
        for crops in crops_of(image, gain=1, offset=1, per_band=1):
            # A value that wrapped around would lie between neighbors on its own side.
            assert crops.dtype == torch.uint8
            for crop in crops:
                upper, lower = crop[:, 0].float(), crop[:, -1].float()
                assert (lower - upper).min() >= -1
    constant = np.full((20, 20, 2), 7, np.uint8)
    assert all((crops == 7).all() for crops in crops_of(constant))


def test_the_crops_follow_from_the_seed_of_a_sample():
    for image in (image_of((40, 40, 3)), image_of((40, 40, 5), np.float32)):
        runs = []
        for position in (1, 1, 2):
            seed_all(0, 0, position)
            runs.append(crops_of(image))
        assert all(a.equal(b) for a, b in zip(runs[0], runs[1], strict=True))
        assert not any(a.equal(b) for a, b in zip(runs[0], runs[2], strict=True))


def test_the_image_itself_is_not_changed():
    for image in (image_of((40, 40, 3)), image_of((40, 40, 5), np.float32)):
        before = image.copy()
        crops_of(image)
        assert np.array_equal(image, before)


def test_colors_of_rgb_are_not_changed_in_other_images():
    with pytest.raises(ArgumentError, match=r"color='rgb' needs .* not torch\.float32 with 5"):
        MultiCrop(color='rgb')(dict(img=np.zeros((64, 64, 5), np.float32)))
