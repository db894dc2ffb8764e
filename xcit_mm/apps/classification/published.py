"""Top-1 accuracies of the paper, and whether a measured one agrees with them."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from ...network.archs import released_name
from ...network.weights.names import Architecture

NUM_CLASSES, NUM_IMAGES = 1000, 50_000  # of ImageNet's validation set
# Percentage points: figures are rounded to 0.1, and timm's evaluation of the released files
# (its results-imagenet.csv) differs from them by up to 0.12.
TOLERANCE = 0.2
STANDARD_ERRORS = 3  # allowed deviation on a sample of the validation set
# Percent (paper, tables 1 and D.1, the same in the release), by patch size and training: at 224
# pixels, distilled at 224, distilled and fine-tuned at 384.
COLUMNS = [(patch, training) for patch in (16, 8) for training in ('224', '224_dist', '384_dist')]
ROWS = {
    'n12': (69.9, 72.2, 75.4, 73.8, 76.3, 77.8),
    't12': (77.1, 78.6, 80.9, 79.7, 81.2, 82.4),
    't24': (79.4, 80.4, 82.6, 81.9, 82.6, 83.7),
    's12': (82.0, 83.3, 84.7, 83.4, 84.2, 85.1),
    's24': (82.6, 83.9, 85.1, 83.9, 84.9, 85.6),
    'm24': (82.7, 84.3, 85.4, 83.7, 85.1, 85.8),
    'l24': (82.9, 84.9, 85.8, 84.4, 85.4, 86.0),
}
TOP1 = {
    released_name(arch, *column): top1
    for arch, row in ROWS.items()
    for column, top1 in zip(COLUMNS, row, strict=True)
}
RELEASED = re.compile(r'(xcit_[a-z]+_\d\d_p\d+_(\d{3}))(_dist|\.fb_dist)?(?!\d)')


def name_in_release(path: str) -> str | None:
    """Return the key of ``TOP1`` that a file is named after, in the authors' form or timm's."""
    match = RELEASED.search(Path(path).name)
    if match is None:
        return None
    # All models of 384 pixels are distilled, which timm's short names leave out.
    name = match[1] + ('_dist' if match[3] or match[2] == '384' else '')
    return name if name in TOP1 else None


def training_size(name: str | None) -> int:
    """Return the image size in pixels at which a released model was trained, or 224 for None."""
    return 224 if name is None else int(name.split('_')[4])


def published(architecture: Architecture, size: int, name: str | None) -> dict[str, float]:
    """Return the published models that a classifier may be, and their top-1 in percent.

    Without a name that agrees with the weights, these are all of this architecture and image size.
    """
    if architecture.arch is None:
        return {}
    prefix = released_name(architecture.arch, architecture.patch_size, training='')
    names = [name] if name is not None and name.startswith(prefix) else TOP1
    return {n: TOP1[n] for n in names if n.startswith(prefix) and training_size(n) == size}


def standard_error(top1: float, images: int) -> float:
    """Return the standard error of an accuracy (percent) on a number of images."""
    return math.sqrt(top1 * (100 - top1) / images)


def verdict(
    candidates: Mapping[str, float], top1: float, images: int, classes: int
) -> tuple[str, bool | None]:
    """Compare the top-1 (percent) on a number of images of some classes with those published.

    Returns a sentence, and whether the weights are the published ones, or None if that is unknown.
    """
    if not candidates:
        return 'There is no published figure for this model, image size and classes.', None
    figures = ' or '.join(f'{figure} for {name}' for name, figure in candidates.items())
    text = f'{top1:.1f} measured, published {figures}'
    if classes < NUM_CLASSES:
        return f'{text}. On {classes} of the 1,000 classes, several points apart are normal.', None
    nearest = min(candidates.values(), key=lambda figure: abs(figure - top1))
    left_out = max(0.0, 1 - images / NUM_IMAGES)  # share of the validation set
    allowed = TOLERANCE + STANDARD_ERRORS * standard_error(nearest, images) * left_out**0.5
    if abs(nearest - top1) <= allowed:
        return f'{text}, at most {allowed:.1f} apart: these are the right weights.', True
    problem = "these are other weights, or the images are not ImageNet's validation set"
    return f'{text}, more than {allowed:.1f} apart: {problem}.', False
