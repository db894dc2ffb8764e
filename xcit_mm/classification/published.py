"""What the paper and the authors' release say of a classifier's accuracy."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from ..models.archs import released_name
from ..weights.architecture import Architecture

NUM_IMAGES = 50_000  # of ImageNet's validation set
# Top-1 in percent on it (paper, tables 1 and D.1, the same in the release): trained at 224
# pixels, distilled at 224, distilled and fine-tuned at 384.
TRAININGS = ('224', '224_dist', '384_dist')
TOP1 = {
    ('n12', 16): (69.9, 72.2, 75.4),
    ('n12', 8): (73.8, 76.3, 77.8),
    ('t12', 16): (77.1, 78.6, 80.9),
    ('t12', 8): (79.7, 81.2, 82.4),
    ('t24', 16): (79.4, 80.4, 82.6),
    ('t24', 8): (81.9, 82.6, 83.7),
    ('s12', 16): (82.0, 83.3, 84.7),
    ('s12', 8): (83.4, 84.2, 85.1),
    ('s24', 16): (82.6, 83.9, 85.1),
    ('s24', 8): (83.9, 84.9, 85.6),
    ('m24', 16): (82.7, 84.3, 85.4),
    ('m24', 8): (83.7, 85.1, 85.8),
    ('l24', 16): (82.9, 84.9, 85.8),
    ('l24', 8): (84.4, 85.4, 86.0),
}
RELEASED_NAME = re.compile(
    r'xcit_(nano|tiny|small|medium|large)_(\d\d)_p(\d+)_(\d{3})(_dist|\.fb_dist)?(?!\d)'
)
DEFAULT_SIZE = 224  # pixels
# Percent points: figures are rounded to 0.1, and timm's evaluation of the released files
# (its results-imagenet.csv) lies up to 0.12 from them.
TOLERANCE = 0.2
STANDARD_ERRORS = 3  # that a sample of the validation set may be off


class Published(NamedTuple):
    """A published model: its name in the release, and its top-1 accuracy in percent."""

    name: str
    top1: float


class Released(NamedTuple):
    """What the name of a file says."""

    arch: str
    patch_size: int
    training: str  # one of TRAININGS

    @property
    def size(self) -> int:
        return int(self.training[:3])


def released(path: str) -> Released | None:
    """Which model of the release a file is by its name, the authors' or timm's; None if neither."""
    match = RELEASED_NAME.search(Path(path).name)
    if match is None:
        return None
    # Of 384 pixels there are distilled ones alone, which timm's short names do not say.
    distilled = match[5] is not None or match[4] == '384'
    training = match[4] + ('_dist' if distilled else '')
    known = (match[1][0] + match[2], int(match[3])) in TOP1 and training in TRAININGS
    return Released(match[1][0] + match[2], int(match[3]), training) if known else None


def input_size(named: Released | None) -> tuple[int, str]:
    """At which size a classifier was trained, in pixels, and how that is known."""
    if named is not None:
        return named.size, 'as its name says'
    return DEFAULT_SIZE, 'as its name does not say otherwise; --size 384 for those fine-tuned so'


def published(kind: Architecture, size: int, named: Released | None) -> list[Published]:
    """The published models that a classifier may be.

    Args:
        kind: What its weights say.
        size: Of the images that it is given, in pixels.
        named: What the file's name says. Weights tell neither whether they were distilled nor at
            which size: without a name, or against it, every model of the architecture that was
            published at this size is a candidate.
    """
    figures = TOP1.get((kind.arch, kind.patch_size), ())
    is_right = named is not None and named[:2] == (kind.arch, kind.patch_size)
    return [
        Published(released_name(kind.arch, kind.patch_size, training), top1)
        for training, top1 in zip(TRAININGS, figures, strict=False)
        if int(training[:3]) == size and (not is_right or training == named.training)
    ]


def standard_error(top1: float, images: int) -> float:
    """Of the accuracy (percent) on so many images, drawn from ever more of their kind."""
    return math.sqrt(top1 * (100 - top1) / images)


def allowed_difference(published_top1: float, images: int) -> float:
    """How far, in percent points, right weights may be from a published accuracy.

    Args:
        published_top1: In percent, on all of the validation set.
        images: How many of it were looked at: the fewer, the more chance there is in it.
    """
    left_out = max(0.0, 1 - images / NUM_IMAGES)
    chance = standard_error(published_top1, images) * math.sqrt(left_out)
    return TOLERANCE + STANDARD_ERRORS * chance
