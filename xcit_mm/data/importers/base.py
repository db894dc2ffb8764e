"""What the datasets of all formats have in common, and the readers of their files."""

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from ...base.errors import UserError, one_line, printable
from ...base.files import parse_xml, read_regular
from ...base.finder import IMAGE_SUFFIXES, find_spelled
from ..transforms.decode import Size, explained

SPLITS = ('train', 'val', 'trainval', 'test')
SYNONYMS = {'training': 'train', 'validation': 'val', 'valid': 'val', 'testing': 'test'}
SYNONYMS['default'] = 'train'  # CVAT's subset for images without a subset of their own

CLASSES = 'classes.txt'
MAX_PRINTED = 50  # problems of labels, or colors
IGNORED = '__ignore__'  # the name of regions that are neither objects nor background

# A box, x1, y1, x2, y2; a polygon, x1, y1, x2, y2, x3, y3, ..., both in pixels; or a mask (H, W) of
# bool, as large as the image.
Shape = Sequence[float] | np.ndarray


class LabelError(UserError):
    """An image or a label cannot be used; the message starts with the file."""


@contextmanager
def named(place: object) -> Iterator[None]:
    """Raise any error of a block as a LabelError that starts with the place."""
    try:
        yield
    except LabelError:
        raise
    except Exception as error:  # readers and decoders raise many types
        why = printable(str(error)) if type(error) is ValueError else explained(error)
        raise LabelError(f'{place}: {why}') from None


class Problems(list[LabelError]):
    """What of a dataset cannot be used."""

    @contextmanager
    def noted(self, place: object) -> Iterator[None]:
        """Append the error of a block, with its place, instead of raising it."""
        try:
            with named(place):
                yield
        except LabelError as error:
            self.append(error)

    def print_all(self, skip_bad: bool) -> None:
        """Print them, unless it is a single one, which an error names."""
        if skip_bad or len(self) > 1:
            for problem in self[:MAX_PRINTED]:
                print(problem)
        if len(self) > MAX_PRINTED:
            print(f'... and {len(self) - MAX_PRINTED} more')


class ForeignDataset(ABC):
    """A dataset to convert; a subclass for each format finds its images and reads their labels.

    Attributes:
        folder: The ``data_root`` of the config.
        classes: The classes in the order of the config; empty: the names of all objects, sorted.
        classes_file: Where they are listed.
        num_things: The number of things, which are the first classes, in a panoptic dataset.
        splits: The absolute paths of the images, by a name of ``SPLITS``.
        labels: The label file of each image.
        problems: The images that are listed and cannot be found.
        remarks: Numbers for the report.
    """

    def __init__(self, source: Path) -> None:
        if not source.exists():
            raise UserError(f'{source} does not exist')
        self.folder = absolute(source if source.is_dir() else source.parent)
        self.classes: list[str] = []
        self.classes_file = self.folder / CLASSES
        self.num_things = 0
        self.splits: dict[str, list[Path]] = {}
        self.labels: dict[Path, Path] = {}
        self.problems = Problems()
        self.remarks: Counter[str] = Counter()

    @abstractmethod
    def read_labels(self, image: Path) -> tuple[list[tuple[str, Any]], Size | None]:
        """Return the labels of an image, each with its place, and its size if it is annotated."""

    @abstractmethod
    def parse_label(self, label: Any, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        """Return the class of an object, its parts, and whether the object is difficult."""

    def read_classes(self) -> None:
        """Read the classes from ``classes.txt`` in the folder of the dataset, if there is one."""
        if self.classes_file.exists():
            names = [line for _, line in read_lines(self.classes_file)]
            self.classes = check_names(names, self.classes_file)

    def add_image(self, image: Path, file: Path, split: str = 'train') -> None:
        """List an image with its label file; a split of another name is for training."""
        if image in self.labels:
            listed = f' and {self.labels[image]}' if self.labels[image] != file else ''
            raise LabelError(f'{file}{listed}: {image} is annotated twice')
        self.splits.setdefault(split_of(split) or 'train', []).append(image)
        self.labels[image] = file

    def leave_out(self, what: str, paths: Sequence[Path]) -> None:
        """Count files or folders that are not used, for the report."""
        if paths:
            self.remarks[f'{what}, such as {paths[0]}, left out'] += len(paths)


def find_image(name: str, candidates: Sequence[Path], place: object) -> Path:
    """Return the first of the paths with a file, or raise a LabelError.

    The ``name`` of an image in a label file may be any text. It may be spelled differently from the
    name of the file (see :func:`.find_spelled`), or lack the suffix.
    """
    paths = [absolute(path) for path in candidates]
    has_suffix = not name or name.lower().endswith(IMAGE_SUFFIXES)
    for suffixes in [('',)] if has_suffix else [('',), IMAGE_SUFFIXES]:
        for path in paths:
            # Path.is_file raises if a name is too long.
            files = [*filter(os.path.isfile, find_spelled(path, suffixes))]
            if len(files) == 1:
                return files[0]
            if files:
                raise LabelError(f'{place}: is {one_line(name)} {" or ".join(map(str, files))}?')
    raise LabelError(f'{place}: no image {one_line(name)} (looked for {one_line(str(paths[0]))})')


def split_of(name: str) -> str | None:
    """Return the split that a text names, one of SPLITS, or None."""
    name = SYNONYMS.get(name.lower(), name.lower())
    return name if name in SPLITS else None


def absolute(path: Path) -> Path:
    """Return an absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  Path.absolute keeps '..'


def read_lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a text that are not empty, each with its place as path:number."""
    with named(path):
        text = read_regular(path).decode('utf-8-sig')
    lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
    return [(f'{path}:{i}', line.strip()) for i, line in enumerate(lines, 1) if line.strip()]


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise a LabelError."""
    with named(path):
        return json.loads(read_regular(path).decode('utf-8-sig'))


def is_converted(path: Path) -> bool:
    """Return whether a JSON file holds the annotations of a split that an earlier call wrote."""
    if path.stem not in SPLITS:
        return False
    content = read_json(path)
    return isinstance(content, dict) and {'images', 'annotations', 'categories'} <= content.keys()


def read_xml(path: Path, root: str) -> Element:
    """Return the root element of an XML file, or raise a LabelError if it has another name."""
    with named(path):
        element = parse_xml(read_regular(path))
    if element.tag != root:
        raise LabelError(f'{path}: the root element is <{element.tag}> instead of <{root}>')
    return element


def read_points(points: Any, number: int | None = None) -> list[float]:
    """Return x1, y1, x2, y2, ... of a list of pairs, or raise a ValueError.

    ``number`` is the number of pairs, by default at least three, as a polygon has.
    """
    pairs = np.array(points, float)
    if pairs.shape[1:] != (2,) or (len(pairs) < 3 if number is None else len(pairs) != number):
        raise ValueError(f'the points are not {number or "at least three"} pairs of numbers')
    return pairs.ravel().tolist()


def grouped(parts: Iterable[tuple[str, Any, Hashable]]) -> list[tuple[str, list]]:
    """Return the parts of each object, with the place of the first one.

    Parts with the same key are of one object; a part whose key is None is an object of its own.
    """
    objects: dict[Hashable, tuple[str, list]] = {}
    for number, (place, part, key) in enumerate(parts):
        objects.setdefault(number if key is None else key, (place, []))[1].append(part)
    return [*objects.values()]


def clean_name(name: str | None) -> str:
    """Return the name of a class without surrounding space, or raise a ValueError."""
    if not (name or '').strip():
        raise ValueError('the name is missing')
    return ' '.join(name.split())


def check_names(names: Any, file: Path) -> list[str]:
    """Return the names of classes without surrounding space, or raise a UserError."""
    is_list = isinstance(names, list) and all(isinstance(n, str) and n.strip() for n in names)
    names = [' '.join(name.split()) for name in names] if is_list else []
    if not names or len(set(names)) < len(names):
        raise UserError(f'{file}: the class names are not a list of unique texts, numbered from 0')
    return names
