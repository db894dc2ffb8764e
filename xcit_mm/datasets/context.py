"""Large drawings in which the name of a shape depends on a mark far away in the same image.

Each image is a square of drawings of the built-in shapes. The drawing in one of its four corners is
a key instead: checks or stripes. As the legend of a map does, it decides what the shapes of the
whole image are called: a circle is a "circle a" if the key has checks, and a "circle b" if it has
stripes. Each image occurs twice, once with each key, so that nothing else in it tells the classes.
A crop without the key does not determine them, whatever a model learns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.progress import track

from ..errors import UserError
from .mosaic import SIZE, new_folder, write_instances, write_mosaic
from .shapes import CLASSES, Shape, annotation_of, draw_image, require_drawable, texture

KEYS = ('a', 'b')  # checks and stripes
CONTEXT_CLASSES = tuple(f'{name} {key}' for key in KEYS for name in CLASSES)
SPLITS = ('training', 'validation')

MARK = 96  # pixels of the side of a key
FIELD = 16  # pixels of the side of a check, and of the width of a stripe
DARK, LIGHT = 20, 235


@dataclass(frozen=True)
class ContextSpec:
    """The parameters of a dataset. The same parameters draw the same images."""

    num_train: int = 48
    num_val: int = 12
    columns: int = 4  # an image has columns x columns drawings of 160 pixels
    seed: int = 0  # not negative


def make_context(root: str | Path, spec: ContextSpec | None = None) -> None:
    """Draw the dataset into a new folder.

    ``images`` and ``labels`` contain tiled TIFF images, in the folders ``training`` and
    ``validation``. A label is 0 for the background, and i + 1 for the class i of CONTEXT_CLASSES.
    ``annotations`` contains the objects in the COCO format.
    """
    spec = spec or ContextSpec()
    require_drawable(spec.seed)
    if spec.columns < 2:
        raise UserError(
            f'shapes: {spec.columns} x {spec.columns} drawings leave no place for a key'
        )
    first_val = spec.num_train
    numbers = range(first_val), range(first_val, first_val + spec.num_val)
    with new_folder(root) as draft:
        for split, of_split in zip(SPLITS, numbers, strict=True):
            _draw_split(draft, split, of_split, spec)


def _draw_split(draft: Path, split: str, numbers: range, spec: ContextSpec) -> None:
    folders = draft / 'images' / split, draft / 'labels' / split
    for folder in (*folders, draft / 'annotations'):
        folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    side = spec.columns * SIZE
    for number in track(numbers, description=f'Drawing {split}'):
        name = f'{number + 1:06d}.tif'
        drawings = _drawings(number, spec)
        placed = write_mosaic(*(folder / name for folder in folders), drawings, spec.columns)
        images.append(dict(id=number + 1, file_name=name, width=side, height=side))
        for shape, corner in placed:
            annotations.append(annotation_of(shape, len(annotations) + 1, number + 1, corner))
    path = draft / f'annotations/instances_{split}.json'
    write_instances(path, images, annotations, CONTEXT_CLASSES)


def _drawings(number: int, spec: ContextSpec) -> Iterator[tuple[np.ndarray, list[Shape]]]:
    """Yield the drawings of an image, row by row; the key decides the classes of all shapes."""
    scene, key = divmod(number, len(KEYS))  # consecutive images differ in their key only
    at = np.random.default_rng((spec.seed, scene, 2)).integers(2, size=2) * (spec.columns - 1)
    for cell in np.ndindex(spec.columns, spec.columns):
        # The seeds of the other datasets end with the number of an image, or with 1.
        rng = np.random.default_rng((spec.seed, scene, *cell, 3))
        if cell == tuple(at):
            yield _draw_key(rng, key), []
            continue
        image, shapes = draw_image(rng, SIZE)
        yield image, [replace(s, category=s.category + key * len(CLASSES)) for s in shapes]


def _draw_key(rng: np.random.Generator, key: int) -> np.ndarray:
    """Return a drawing of a key alone, (SIZE, SIZE, 3) uint8."""
    image = texture(rng, SIZE, contrast=30.0).round().clip(0, 255).astype(np.uint8)
    y, x = np.indices((MARK, MARK)) // FIELD
    is_light = (x + y if KEYS[key] == 'a' else x) % 2
    start = (SIZE - MARK) // 2
    mark = slice(start, start + MARK)
    image[mark, mark] = np.where(is_light, LIGHT, DARK)[..., None]
    return image
