"""YOLO's layout: a text for each image, with a line for each object, and a data.yaml."""

import os
from itertools import product
from pathlib import Path

import yaml

from ..errors import UserError, reason
from .convert import (
    SUFFIXES,
    LabelError,
    LabelledDataset,
    LabelledObject,
    checked_names,
    full,
    image_size,
    names_of_file,
    read_bytes,
    read_lines,
    read_number,
)
from .images import Size

IMAGES, LABELS = 'images', 'labels'  # folders that mirror each other
DESCRIPTION = 'data.yaml'
CLASSES = ('classes.txt', 'labels/classes.txt')
SPLITS = ('train', 'val', 'test')
NO_SPLITS = ({split: f'{IMAGES}/{split}' for split in SPLITS}, {'train': IMAGES}, {'train': '.'})
NOTHING = ('', '~', 'null', 'Null', 'NULL')  # in YAML, whose values are texts here
BOX = 4  # numbers behind the class: centre, width and height; more are a polygon
MIN_POLYGON = 6


class YoloDataset(LabelledDataset):
    """A folder with a data.yaml, or with a classes.txt and images.

    Without data.yaml the splits are the folders images/train, images/val and images/test, or all
    images are one.

    Args:
        source: The folder, or its YAML file.

    Raises:
        UserError: If there is none of both, or what it says is wrong or missing.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source if source.is_dir() else source.parent)
        if not source.exists():
            raise UserError(f'{source}: there is no such folder')
        file = self._description(source)
        if file.suffix == '.txt':
            self.classes = names_of_file(file)
            places = (
                {split: [self.folder / p] for split, p in s.items() if (self.folder / p).is_dir()}
                for s in NO_SPLITS
            )
            entries = next(filter(None, places))
        else:
            content = read_yaml(file)
            self.classes = _names(content, file)
            entries = _splits(content, file)
        self._file = file
        for split, places in entries.items():
            self.splits[split] = [image for place in places for image in self._images(place)]

    def read(self, image: Path) -> tuple[Size, list[LabelledObject]]:
        size = image_size(image)
        file = self.where_labels_are(image)
        objects: list[LabelledObject] = []
        if file.exists():
            for place, line in read_lines(file):
                self.add_object(objects, self._object, line.split(), size, place)
        else:
            self.notes['images have no label file, and are background'] += 1
        return size, objects

    def where_labels_are(self, image: Path) -> Path:
        """In the folder that mirrors that of the images; beside the image, if it is there."""
        beside = image.with_suffix('.txt')
        before, found, behind = str(beside).rpartition(f'{os.sep}{IMAGES}{os.sep}')
        mirrored = Path(f'{before}{os.sep}{LABELS}{os.sep}{behind}') if found else beside
        return beside if beside.exists() and not mirrored.exists() else mirrored

    def _description(self, source: Path) -> Path:
        if not source.is_dir():
            return source
        files = sorted(p for p in source.iterdir() if p.suffix in ('.yaml', '.yml'))
        named = [file for file in files if file.name == DESCRIPTION] or files
        if len(named) > 1:
            names = ', '.join(file.name for file in named)
            raise UserError(f'{source} has {names}: name the one that describes the dataset')
        texts = [source / name for name in CLASSES if (source / name).exists()]
        if not named + texts:
            raise UserError(
                f'{source} has neither a {DESCRIPTION} nor a {CLASSES[0]}, as YOLO has them'
            )
        return (named + texts)[0]

    def _images(self, place: Path) -> list[Path]:
        """Those of a folder and the folders in it, or of a list."""
        if place.is_dir():
            try:
                return sorted(p for p in place.rglob('*') if p.suffix.lower() in SUFFIXES)
            except OSError as error:  # of a folder that somebody removes, or may not read
                raise UserError(f'the folder {place} cannot be read ({reason(error)})') from None
        images = []
        for where, line in read_lines(place):
            candidates = [full(folder / line) for folder in (place.parent, self.folder)]
            image = next(filter(os.path.exists, candidates), None)
            if image is None:
                error = LabelError(f'{where}: there is no image {candidates[0]}')
                self.problems.append(error)
            else:
                images.append(image)
        return images

    def _object(self, words: list[str], size: Size, place: str) -> LabelledObject:
        number, *numbers = (read_number(word, place) for word in words)
        if number not in range(len(self.classes)):
            raise LabelError(
                f'{place}: the class {words[0]} is not in 0..{len(self.classes) - 1}, those of '
                f'{self._file.name}'
            )
        is_box = len(numbers) == BOX
        if not is_box and (len(numbers) < MIN_POLYGON or len(numbers) % 2):
            raise LabelError(
                f'{place}: {len(numbers)} numbers behind the class, not the 4 of a box or an even '
                'number of a polygon'
            )
        if is_box:
            x, y, width, height = numbers
            numbers = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        scaled = [n * side for n, side in zip(numbers, size * (len(numbers) // 2), strict=True)]
        shape = self.within(scaled, size, place)
        name = self.classes[int(number)]
        if is_box:
            return LabelledObject(name, shape)
        xs, ys = shape[::2], shape[1::2]
        return LabelledObject(name, (min(xs), min(ys), max(xs), max(ys)), list(shape))


def read_yaml(file: Path) -> dict:
    """A YAML file that describes a dataset, with all values as texts, lists and dictionaries.

    Raises:
        UserError: If it is no YAML, or does not describe a dataset.
    """
    try:
        content = yaml.load(read_bytes(file), Loader=yaml.BaseLoader)  # builds no objects
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, 'problem_mark', None)
        line = f':{mark.line + 1}' if mark else ''
        raise UserError(f'{file}{line}: it is no YAML ({reason(error)})') from None
    if not isinstance(content, dict):
        raise UserError(f'{file}: it does not describe a dataset: names and train are missing')
    if 'kpt_shape' in content:
        raise UserError(f'{file}: kpt_shape: keypoints are not read: take a dataset of boxes')
    return content


def _names(content: dict, file: Path) -> list[str]:
    names = content.get('names')
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if set(numbers) != set(names):
            raise UserError(f'{file}: the names are not numbered from 0 to {len(names) - 1}')
        names = [names[number] for number in numbers]
    checked = checked_names(names if isinstance(names, list) else [], file)
    if content.get('nc', str(len(checked))) != str(len(checked)):
        raise UserError(f'{file}: nc is not {len(checked)}, the number of its names')
    return checked


def _splits(content: dict, file: Path) -> dict[str, list[Path]]:
    """The folders and lists of each split."""
    splits = {}
    for split in SPLITS:
        entries = content.get(split, '')
        if entries in NOTHING:
            continue
        entries = [entries] if isinstance(entries, str) else entries
        if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
            raise UserError(f'{file}: {split} is neither a path nor a list of paths')
        if entries:
            splits[split] = [_place(entry, split, content.get('path'), file) for entry in entries]
    return splits


def _place(entry: str, split: str, path: str | None, file: Path) -> Path:
    """A folder or a list, where the file says, or the file's own folder has it.

    Files are made on other machines, and those of Roboflow begin with a ../ too many.
    """
    folders = [file.parent / path] if isinstance(path, str) else []
    entries = (entry, entry.removeprefix('../'))
    candidates = [full(folder / e) for folder, e in product([*folders, file.parent], entries)]
    found = next(filter(os.path.exists, candidates), None)
    if found is None:
        raise UserError(
            f'{file}: {split} is {entry}, which is missing (looked for at {candidates[0]}): put it '
            'there, or take it out of the file'
        )
    return found
