"""Models that predict each image at its own size."""

import pytest
from helpers.random_weights import DETECTOR, SEGMENTOR

from xcit_mm import load_model


@pytest.fixture(scope='session')
def full_size_detector(weights):
    return load_model(DETECTOR, weights[DETECTOR], 'cpu', full_size=True)


@pytest.fixture(scope='session')
def full_size_segmentor(weights):
    return load_model(SEGMENTOR, weights[SEGMENTOR], 'cpu', full_size=True)
