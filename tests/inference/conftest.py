from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.random_weights import DETECTOR, SEGMENTOR, save_random_weights

from xcit_mm.inference import load_model


@pytest.fixture(scope='session')
def weights(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {
        config: save_random_weights(config, folder / f'{Path(config).stem}.pth')
        for config in (DETECTOR, SEGMENTOR)
    }


@pytest.fixture(scope='session')
def detector(weights):
    return load_model(DETECTOR, weights[DETECTOR], device='cpu')


@pytest.fixture(scope='session')
def segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], device='cpu')


@pytest.fixture(scope='session')
def image(shapes_root) -> np.ndarray:
    """RGB, 130 x 160."""
    path = min((shapes_root / 'coco/val2017').iterdir())
    return np.ascontiguousarray(cv2.imread(str(path))[:130, :, ::-1])
