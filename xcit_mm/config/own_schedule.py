"""How long a training on a dataset of one's own takes, and how fast it learns."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from .adapt import AUTO
from .start import SMALL_NECK, Start

# Images in an update. A CPU takes seconds for each of them, and a GPU hardly notices.
IMAGES_ON_CPU, IMAGES_ON_GPU = 4, 16
RATE = 1e-4  # the learning rate for the smaller batch; it grows with the root of the batch
# Fine-tuning on 48 drawings with 1e-4, 3e-4 and 1e-3, two seeds: docs/your_data.md.
RATE_SMALL = 3e-4
RATE_FROM_SCRATCH = 7e-4
MIN_STEPS = 200
MIN_EPOCHS = 12  # passes over the images
EPOCHS_OF_FEW = 200  # divided by the root of the number of images: 29 epochs for 48 images
VALIDATIONS = 10


def schedule(start: Start, num_images: int) -> Mapping[str, Any]:
    """Return the fields of a config's schedule for a number of training images.

    ``max_iters`` is a multiple of :data:`VALIDATIONS`. On a GPU, the batch is the largest one that
    fits.
    """
    on_gpu = torch.cuda.is_available()
    images = IMAGES_ON_GPU if on_gpu else IMAGES_ON_CPU
    rate = RATE_SMALL if start.neck_channels == SMALL_NECK else RATE
    least, epochs = MIN_STEPS, EPOCHS_OF_FEW / math.sqrt(num_images)
    if start.is_scratch:
        images, rate, least, epochs = 2 * images, RATE_FROM_SCRATCH, 3 * least, 2 * epochs
    steps = max(least, max(MIN_EPOCHS, epochs) * num_images / images)
    return dict(
        images_per_step=images,
        batch_size=repr(AUTO) if on_gpu else images,
        lr=float(f'{rate * math.sqrt(images / IMAGES_ON_CPU):.1g}'),
        max_iters=VALIDATIONS * math.ceil(steps / VALIDATIONS),
        validations=VALIDATIONS,
    )
