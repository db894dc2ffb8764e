"""Large drawings in which the class of a shape depends on a mark far away in the same image.

Each image is a square of drawings of the built-in shapes. One of its four corners holds a red or
cyan key instead of a drawing. Like the legend of a map, the key decides the class of all shapes in
the image: "shape a" or "shape b". Each image occurs twice, once with each key, so that nothing else
in it reveals the class. From a crop without the key, no model can tell the class.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.progress import track

from xcit_mm.data.drawings.shapes import Shape, annotation_of, draw_image, new_folder

from .mosaic import SIZE, write_instances, write_mosaic

CONTEXT_CLASSES = ('shape a', 'shape b')
KEYS = (255, 0, 0), (0, 255, 255)  # of each class: red and cyan, purer than the colors of shapes
SPLITS = ('training', 'validation')


@dataclass(frozen=True)
class ContextSpec:
    """The parameters of a dataset. The same parameters draw the same images."""

    num_train: int = 48
    num_val: int = 12
    columns: int = 3  # an image has columns x columns drawings of 160 pixels; 2 or more
    seed: int = 0  # not negative


def make_context(root: str | Path, spec: ContextSpec | None = None) -> None:
    """Draw the dataset into a new folder.

    ``images`` and ``labels`` contain tiled TIFF images, in the folders ``training`` and
    ``validation``. A label is 0 for the background, and i + 1 for the class i of CONTEXT_CLASSES.
    ``annotations`` contains the objects in the COCO format.
    """
    spec = spec or ContextSpec()
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
    """Yield the drawings of an image, row by row; the key decides the class of all shapes."""
    scene, key = divmod(number, len(KEYS))  # consecutive images differ only in their key
    at = np.random.default_rng((spec.seed, scene, 2)).integers(2, size=2) * (spec.columns - 1)
    for cell in np.ndindex(spec.columns, spec.columns):
        # The seeds of the other datasets end with the number of an image, or with 1.
        rng = np.random.default_rng((spec.seed, scene, *cell, 3))
        if cell == tuple(at):
            yield _draw_key(rng, key), []
            continue
        image, shapes = draw_image(rng, SIZE)
        yield image, [replace(s, category=key) for s in shapes]


def _draw_key(rng: np.random.Generator, key: int) -> np.ndarray:
    """Return a drawing that shows only a key, (SIZE, SIZE, 3) uint8."""
    grain = rng.normal(scale=5.0, size=(SIZE, SIZE, 3))
    return (np.array(KEYS[key]) + grain).round().clip(0, 255).astype(np.uint8)
