"""What the datasets of all formats have in common, and the readers of their files."""

import json
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from ...base.errors import UserError, looked_in, one_line, reason
from ...base.files import parse_xml, read_regular
from ...base.finder import (
    IMAGE_SUFFIXES,
    LeftOut,
    find_files,
    find_spelled,
    images_beside,
    same_name,
)
from ..transforms.decode import Size  # width and height in pixels

SPLITS = ('train', 'val', 'trainval', 'test')
SYNONYMS = {'training': 'train', 'validation': 'val', 'valid': 'val', 'testing': 'test'}
SYNONYMS['default'] = 'train'  # CVAT's subset for images without a subset of their own

CLASSES = 'classes.txt'
IGNORED = '__ignore__'  # the name of regions that are neither objects nor background

# A box, x1, y1, x2, y2; a polygon, x1, y1, x2, y2, x3, y3, ..., both in pixels; or a mask (H, W) of
# bool, as large as the image.
Shape = Sequence[float] | np.ndarray


class LabelError(UserError):
    """An image or a label cannot be used; the message starts with the file."""


class ForeignDataset(ABC):
    """A dataset to convert; a subclass for each format finds its images and reads their labels.

    It raises a LabelError for a file or a label that cannot be used.
    """

    def __init__(self, source: Path) -> None:
        if not source.exists():
            raise UserError(f'{source} does not exist{looked_in(source)}')
        # The ``data_root`` of the config.
        self.folder = absolute(source if source.is_dir() else source.parent)
        # In the order of the config, and where they are listed; empty: the names of all objects,
        # sorted.
        self.classes: list[str] = []
        self.classes_file = self.folder / CLASSES
        self.num_things = 0  # the first classes in a panoptic dataset
        self.splits: dict[str, list[Path]] = {}  # absolute paths of images, by a name of SPLITS
        self.labels: dict[Path, Path] = {}  # the label file of each image
        self.problems: list[LabelError] = []  # images that are listed and cannot be found
        self.remarks: Counter[str] = Counter()  # numbers for the report

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
            self.problems.append(LabelError(f'{file}{listed}: {image} is annotated twice'))
        else:
            self.splits.setdefault(split_of(split) or 'train', []).append(image)
            self.labels[image] = file

    def note_unused(self) -> None:
        """Count the images in the folders of the listed images that no label or list names."""
        self.leave_out('Images without a label or not listed', images_beside(self.labels))

    def leave_out(self, what: str, paths: Sequence[Path]) -> None:
        """Count files or folders that are not used, for the report."""
        if paths:
            self.remarks[f'{what}, such as {paths[0]}, left out'] += len(paths)


class FilesByName:
    """The files below a folder, by relative paths without suffixes or by names alone.

    A name also finds files whose names are spelled differently (see :func:`.same_name`).

    Args:
        folder: The folder.
        suffixes: The suffixes of the files.
        left: Collects what is left out.
    """

    def __init__(self, folder: Path, suffixes: Sequence[str], left: LeftOut) -> None:
        self.folder = folder
        self.files: dict[str, list[Path]] = {}
        self._spelled: dict[str, list[Path]] = {}
        self._alone: dict[str, list[Path]] = {}
        for file in sorted(find_files(folder, suffixes, left)):
            path = file.relative_to(folder).with_suffix('').as_posix()
            self.files.setdefault(path, []).append(file)
            self._spelled.setdefault(same_name(path), []).append(file)
            self._alone.setdefault(same_name(file.stem), []).append(file)

    def find(self, name: str) -> list[Path]:
        """Return the files with a name: none, one or several."""
        names = [name, name.strip('"')]  # datumaro quotes names with spaces
        names += [name.rpartition('.')[0]] * name.lower().endswith(IMAGE_SUFFIXES)
        for path in names:
            spelled = same_name(path)
            indexes = self.files.get(path), self._spelled.get(spelled), self._alone.get(spelled)
            if found := next(filter(None, indexes), None):
                return found
        return []

    def only(self, name: str, place: str) -> Path:
        """Return the only file with a name that ``place`` mentions, or raise a LabelError."""
        found = self.find(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise LabelError(f'{place}: is {one_line(name)} {" or ".join(map(str, found))}?')
        raise LabelError(f'{place}: no image {one_line(name)} in {self.folder}')


def split_of(name: str) -> str | None:
    """Return the split that a text names, one of SPLITS, or None."""
    name = SYNONYMS.get(name.lower(), name.lower())
    return name if name in SPLITS else None


def absolute(path: Path) -> Path:
    """Return an absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  Path.absolute keeps '..'


def find_image(name: str, candidates: Sequence[Path], place: str) -> Path:
    """Return the first of the paths with a file, or raise a LabelError.

    The ``name`` of an image in a label file may be any text. It may be spelled differently from the
    name of the file (see :func:`.same_name`), or lack the suffix.
    """
    paths = [absolute(path) for path in candidates]
    endings = (
        [('',)] if not name or name.lower().endswith(IMAGE_SUFFIXES) else [('',), IMAGE_SUFFIXES]
    )
    for suffixes in endings:
        for path in paths:
            # Path.is_file raises if a name is too long.
            found = [*filter(os.path.isfile, find_spelled(path, suffixes))]
            if len(found) == 1:
                return found[0]
            if found:
                raise LabelError(f'{place}: is {one_line(name)} {" or ".join(map(str, found))}?')
    raise LabelError(f'{place}: no image {one_line(name)} (looked for {one_line(str(paths[0]))})')


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file, or raise a LabelError."""
    try:
        return read_regular(path)
    except OSError as error:
        raise LabelError(f'{path}: {error.strerror or reason(error)}') from None


def read_lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a text that are not empty, each with its place as path:number."""
    try:
        text = read_bytes(path).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise LabelError(f'{path}: not a text in UTF-8 ({error.reason})') from None
    lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
    return [(f'{path}:{i}', line.strip()) for i, line in enumerate(lines, 1) if line.strip()]


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise a LabelError."""
    try:
        return json.loads(read_bytes(path).decode('utf-8-sig'))
    except (ValueError, RecursionError) as error:
        raise LabelError(f'{path}: invalid JSON ({reason(error)})') from None


def is_converted(path: Path) -> bool:
    """Return whether a JSON file holds the annotations of a split that an earlier call wrote."""
    try:
        content = read_json(path) if path.stem in SPLITS else None
    except LabelError:  # the reader of the dataset says so
        content = None
    return isinstance(content, dict) and {'images', 'annotations', 'categories'} <= content.keys()


def read_xml(path: Path, root: str) -> Element:
    """Return the root element of an XML file, or raise a LabelError if it has another name."""
    try:
        element = parse_xml(read_bytes(path))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise LabelError(f'{path}: invalid XML ({error})') from None
    if element.tag != root:
        raise LabelError(f'{path}: the root element is <{element.tag}> instead of <{root}>')
    return element


def read_numbers(words: Sequence[str | float | None], place: str) -> list[float]:
    """Return numbers or the numbers in texts, or raise a LabelError if they are not finite."""
    try:
        numbers = [float(word) for word in words]
    except (TypeError, ValueError, OverflowError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise LabelError(f'{place}: not finite numbers: {" ".join(map(str, words))}')
    return numbers


def read_points(points: Any, place: str, number: int | None = None) -> list[float]:
    """Return x1, y1, x2, y2, ... of a list of pairs, or raise a LabelError.

    ``number`` is the number of pairs, by default at least three, as a polygon has.
    """
    is_list = isinstance(points, list) and all(isinstance(p, list) and len(p) == 2 for p in points)
    if not is_list or (len(points) < 3 if number is None else len(points) != number):
        needed = 'at least three' if number is None else number
        raise LabelError(f'{place}: the points are not a list of {needed} pairs of numbers')
    return read_numbers([value for point in points for value in point], place)


def grouped(parts: Iterable[tuple[str, Any, Hashable]]) -> list[tuple[str, list]]:
    """Return the parts of each object, with the place of the first one.

    Parts with the same key are of one object; a part whose key is None is an object of its own.
    """
    objects: dict[Hashable, tuple[str, list]] = {}
    for number, (place, part, key) in enumerate(parts):
        objects.setdefault(number if key is None else key, (place, []))[1].append(part)
    return [*objects.values()]


def clean_name(name: Any, place: str) -> str:
    """Return the name of a class without surrounding space, or raise a LabelError."""
    name = ' '.join(name.split()) if isinstance(name, str) else ''
    if not name:
        raise LabelError(f'{place}: the name is missing')
    return name


def check_names(names: Any, file: Path) -> list[str]:
    """Return the names of classes without surrounding space, or raise a UserError."""
    is_list = isinstance(names, list) and all(isinstance(n, str) and n.strip() for n in names)
    names = [' '.join(name.split()) for name in names] if is_list else []
    if not names or len(set(names)) < len(names):
        raise UserError(f'{file}: the class names are not a list of unique texts, numbered from 0')
    return names
