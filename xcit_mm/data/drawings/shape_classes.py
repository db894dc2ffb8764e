"""Drawings of single shapes in one folder per class, for training classifiers."""

from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from rich.progress import track

from ...base.files import write_json
from .shapes import MANIFEST, MIN_CONTRAST, is_drawn, new_folder, texture

KINDS = {'circle': 64, 'hexagon': 6, 'pentagon': 5, 'square': 4, 'triangle': 3}  # number of corners
CLASSES = tuple(sorted(f'{kind}_{part}' for kind in KINDS for part in ('filled', 'frame')))
SIDE = 64  # side of the images in pixels
RADIUS = 0.24, 0.42  # radius of the main shape, relative to the side
SMALL = 0.05, 0.11  # radius of the small shapes around it, which do not determine the class
FRAME = 0.45  # width of a frame, relative to its radius
NUM_SMALL = 6


@dataclass(frozen=True)
class ClassesSpec:
    """The parameters of a dataset. The same parameters draw the same images."""

    num_train: int = 1000
    num_val: int = 400
    seed: int = 0  # not negative


def make_classes(root: str | Path, spec: ClassesSpec) -> bool:
    """Draw the dataset into a new or empty folder. Return False if it already exists there.

    The dataset has the folders ``train`` and ``val`` with one subfolder per class. Images are
    assigned to the classes in rotation, so class sizes differ by at most one image.
    """
    if is_drawn(root, asdict(spec)):
        return False
    numbers = range(spec.num_train), range(spec.num_train, spec.num_train + spec.num_val)
    with new_folder(root) as draft:
        for split, images in zip(('train', 'val'), numbers, strict=True):
            for number in track(images, description=f'Drawing {split}'):
                name = CLASSES[number % len(CLASSES)]
                image = draw_class(np.random.default_rng((spec.seed, number)), name)
                path = draft / split / name / f'{number:06d}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(cv2.imencode('.png', image[..., ::-1])[1])
        write_json(draft / MANIFEST, asdict(spec))
    return True


def draw_class(rng: np.random.Generator, name: str) -> np.ndarray:
    """Draw an image (64, 64, 3) in uint8 RGB of one of the ``CLASSES``."""
    kind, part = name.split('_')
    image = texture(rng, SIDE, contrast=30.0)
    for _ in range(NUM_SMALL):
        small = list(KINDS.values())[rng.integers(len(KINDS))]
        image = _with_shape(rng, image, small, rng.uniform(*SMALL), rng.uniform(0, SIDE, 2))
    radius = rng.uniform(*RADIUS)
    center = SIDE / 2 + rng.uniform(-1, 1, 2) * SIDE * (0.5 - radius)
    image = _with_shape(rng, image, KINDS[kind], radius, center, is_frame=part == 'frame')
    return image.round().clip(0, 255).astype(np.uint8)


def _with_shape(
    rng: np.random.Generator,
    image: np.ndarray,
    corners: int,
    radius: float,
    center: np.ndarray,
    is_frame: bool = False,
) -> np.ndarray:
    angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(corners) / corners
    unit = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for share, value in ((1, 255), (1 - FRAME, 0))[: 1 + is_frame]:
        points = 16 * (center + share * radius * SIDE * unit - 0.5)  # fixed point for cv2
        cv2.fillPoly(mask, [points.round().astype(np.int32)], value, cv2.LINE_AA, shift=4)
    weight = mask[..., None] / np.float32(255)
    below = (image * weight).sum((0, 1)) / max(weight.sum(), 1)
    while True:
        paint = texture(rng, SIDE, contrast=15.0)
        if np.linalg.norm(paint.mean((0, 1)) - below) >= MIN_CONTRAST:
            return image * (1 - weight) + paint * weight
