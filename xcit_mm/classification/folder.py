"""Pictures in a folder for each class, as ImageNet comes."""

import random
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS

from ..environment import require
from ..errors import UserError

IMAGENET_CLASSES = 1000
NUM_SHOWN = 3  # folders, in an error


class LabelledImages(NamedTuple):
    """Images with the classes that they are of.

    Attributes:
        paths: Of the files.
        labels: The number of each one's class, as the classifier counts them.
        is_imagenet: Whether the classes are those of ImageNet-1k.
        num_classes: How many classes the folder, of which these may be a sample, has images of.
    """

    paths: list[Path]
    labels: list[int]
    is_imagenet: bool
    num_classes: int

    def sample(self, count: int) -> 'LabelledImages':
        """So many of them, drawn at random, the same ones each time; all, if there are fewer."""
        chosen = random.Random(0).sample(range(len(self.paths)), min(count, len(self.paths)))
        paths, labels = ([values[i] for i in chosen] for values in (self.paths, self.labels))
        return LabelledImages(paths, labels, self.is_imagenet, self.num_classes)


def labelled_images(folder: Path, num_classes: int) -> LabelledImages:
    """Find the images of a folder and their classes.

    Folders named by ImageNet's synsets (n01440764) may be fewer than its 1000; the classes of
    others are the folders in the order of their names, one for each class of the classifier.

    Args:
        folder: With a folder for each class, which holds the images.
        num_classes: Of the classifier.

    Raises:
        UserError: If the folders are not those of the classes, or hold no image.
    """
    if not folder.is_dir():
        raise UserError(f'{folder}: there is no such folder')
    names = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith('.'))
    if not names:
        raise UserError(
            f'{folder} holds no folders, where there should be one for each class; the archive of '
            "ImageNet's validation images has none: move each image into the folder of its synset"
        )
    number = {name: i for i, name in enumerate(synsets())}
    is_imagenet = num_classes == IMAGENET_CLASSES and any(name in number for name in names)
    if not is_imagenet:
        number = {name: i for i, name in enumerate(names)}
    others = [name for name in names if name not in number]
    if others:
        raise UserError(f'{folder}: {_some(others)} are no synsets of ImageNet-1k, as the others')
    if not is_imagenet and len(names) != num_classes:
        expected = 'named by synsets as n01440764' if num_classes == IMAGENET_CLASSES else 'each'
        inner = next((name for name in ('val', 'validation', 'train') if name in names), None)
        remedy = f'; is it {folder / inner}?' if inner else ''
        raise UserError(
            f'{folder} has {len(names)} folders ({_some(names)}), but the classifier '
            f'{num_classes} classes, a folder {expected}{remedy}'
        )
    found = [
        (path, number[name])
        for name in names
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in IMG_EXTENSIONS
    ]
    if not found:
        raise UserError(f'{folder}: the folders of the classes hold no image')
    paths, labels = map(list, zip(*found, strict=True))
    return LabelledImages(paths, labels, is_imagenet, len(set(labels)))


def synsets() -> list[str]:
    """The names of ImageNet-1k's folders, in the order of its classes."""
    return _imagenet().label_names()


def class_names(num_classes: int) -> list[str]:
    """What to call the classes of a classifier: ImageNet's words, or numbers."""
    if num_classes == IMAGENET_CLASSES:
        return _imagenet().label_descriptions()
    return [f'class {i}' for i in range(num_classes)]


def _imagenet():
    require('timm')
    from timm.data import ImageNetInfo

    return ImageNetInfo()


def _some(names: list[str]) -> str:
    return ', '.join(names[:NUM_SHOWN]) + (', ...' if len(names) > NUM_SHOWN else '')
