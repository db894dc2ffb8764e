"""Image descriptors: one vector of length 1 per image."""

import numpy as np

from ...predict.embedder import unit_vector
from .codebook import Codebook, vlad
from .image_tokens import ImageTokens

TOKEN, MEAN, GEM, VLAD, ASMK = DESCRIPTORS = 'token', 'mean', 'gem', 'vlad', 'asmk'
WITH_CODEBOOK = {VLAD: 256, ASMK: 1024}  # with the default number of centers
GEM_POWER = 3
SMALLEST = 1e-6  # lowest value in GeM, because powers need positive values


def describe(image: ImageTokens, kind: str, codebook: Codebook | None) -> np.ndarray:
    """Return a float32 descriptor (D) of length 1.

    Args:
        image: The features of the image.
        kind: One of ``DESCRIPTORS`` except 'asmk', which has no vector.
        codebook: The codebook for VLAD.

    Raises:
        UserError: If all values are 0.
    """
    if kind == TOKEN:
        vector = image.token().astype(np.float64)
    elif kind == VLAD:
        vector = vlad(sum(map(codebook.residuals, image.tiles()))).astype(np.float64)
    else:
        vector = _pooled(image, GEM_POWER if kind == GEM else 1)
    return unit_vector(vector)


def _pooled(image: ImageTokens, power: int) -> np.ndarray:
    total, count = 0.0, 0
    for tokens in image.tiles():
        values = tokens.astype(np.float64)
        if power != 1:
            values = values.clip(SMALLEST) ** power
        total, count = total + values.sum(0), count + len(values)
    return (total / count) ** (1 / power) if power != 1 else total / count
