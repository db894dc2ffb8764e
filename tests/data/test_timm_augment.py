"""DeiT's augmentation, between loaders and models that have images as BGR from 0 to 255."""

import cv2
import numpy as np

from xcit_mm.data.datasets.samples import seed_all
from xcit_mm.data.transforms.timm_augment import TimmAugment

BLUE = np.full((40, 56, 3), (250, 20, 10), np.uint8)


def augmented(image, **kwargs):
    return TimmAugment(32, **kwargs)(dict(img=image))['img']


def test_channels_and_values_stay_as_they_were():
    result = augmented(BLUE, auto_augment=None, erase=0.0)
    assert result.shape == (32, 32, 3) and result.dtype == np.float32
    np.testing.assert_allclose(result, cv2.resize(BLUE, (32, 32)), atol=1e-3)


def test_erased_parts_are_noise_around_the_mean_of_imagenet():
    seed_all(0)
    result = augmented(BLUE, auto_augment=None, erase=1.0)
    noise = result[np.abs(result - BLUE[0, 0]).max(-1) > 1e-3]
    assert 10 < len(noise) < 32 * 32
    assert np.abs(noise.mean(0) - (103.53, 116.28, 123.675)).max() < 40
    assert (noise.std(0) > 20).all()


def test_the_augmentation_follows_from_the_seed():
    image = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
    results = []
    for seed in (1, 1, 2):
        seed_all(seed)
        results.append(augmented(image))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
