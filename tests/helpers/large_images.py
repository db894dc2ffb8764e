"""Images that are read by windows, for a model."""

from pathlib import Path

import numpy as np

from xcit_mm.inference.model import Model
from xcit_mm.large_images.normalized import NormalizedImage
from xcit_mm.large_images.window_files import open_image


def normalized(
    image: Path | np.ndarray, model: Model, channels: int | None = None
) -> NormalizedImage:
    source = open_image(image, model.read, channels)
    transforms = model.pipeline.transforms[1:]
    return NormalizedImage(source, model.module.data_preprocessor, transforms, model.bands)
