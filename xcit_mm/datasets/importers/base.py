"""What the datasets of all formats have in common, and the readers of their files."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError, looked_in, reason
from ...files import read_regular

SPLITS = ('train', 'val', 'trainval', 'test')
IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')

Size = tuple[int, int]  # width and height in pixels


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
        # In the order of the config; empty: the names of all objects, sorted.
        self.classes: list[str] = []
        self.splits: dict[str, list[Path]] = {}  # absolute paths of images, by a name of SPLITS
        self.labels: dict[Path, Path] = {}  # the label file of each image
        self.problems: list[LabelError] = []  # images that are listed and cannot be found

    @abstractmethod
    def read_labels(self, file: Path) -> tuple[list[tuple[str, Any]], Size | None]:
        """Return the labels in a file, each with its place, and the size of the image if known."""

    @abstractmethod
    def parse_label(self, label: Any, size: Size, place: str) -> tuple[str, Sequence[float], bool]:
        """Return the class of an object, its shape, and whether the object is difficult.

        The shape is a box, x1, y1, x2, y2, or a polygon, x1, y1, x2, y2, x3, y3, ..., in pixels.
        """


def absolute(path: Path) -> Path:
    """Return an absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  Path.absolute keeps '..'


def image_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob('*') if file.suffix.lower() in IMAGE_SUFFIXES)


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


def read_numbers(words: Sequence[str | None], place: str) -> list[float]:
    """Return the numbers in texts, or raise a LabelError if they are not finite."""
    try:
        numbers = [float(word) for word in words]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise LabelError(f'{place}: not finite numbers: {" ".join(map(str, words))}')
    return numbers


def check_names(names: Any, file: Path) -> list[str]:
    """Return the names of classes without surrounding space, or raise a UserError."""
    is_list = isinstance(names, list) and all(isinstance(n, str) and n.strip() for n in names)
    names = [' '.join(name.split()) for name in names] if is_list else []
    if not names or len(set(names)) < len(names):
        raise UserError(f'{file}: the class names are not a list of unique texts, numbered from 0')
    return names
