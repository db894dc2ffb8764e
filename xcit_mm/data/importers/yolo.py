"""The format of YOLO: a YAML file, and a text file for each image."""

import os
import re
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from ...base.errors import UserError, one_line
from ...base.finder import LeftOut, find_files, find_spelled, subfolders
from . import base
from .base import ForeignDataset, LabelError, Shape, Size

# The last folder of this name in a path.
IMAGES = re.compile(r'(?<=[/\\])images(?=[/\\])(?!.*[/\\]images[/\\])', re.I)
MAX_RELATIVE = 2  # larger coordinates of YOLO are in pixels, not slightly beyond the border
TAGS = ('str', 'int', 'float', 'bool', 'null', 'seq', 'map')  # of YAML, for plain values
ORIENTED = (
    'Outlines of four corners, as YOLO writes oriented boxes (OBB); detectors of boxes learn the '
    'upright boxes around them, without the angle'
)
LABEL = re.compile(rb'\s*\d+\.?\d*\s')  # the start of a file of labels
NOT_PLACES = ('path', 'names')
EMPTY = (None, '', '~', 'null')  # values in YAML that is read as text


class _Texts(yaml.BaseLoader):
    """Read the values of a YAML file as texts, and refuse tags, because it would ignore them."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag.removeprefix('tag:yaml.org,2002:') not in TAGS:
            problem = f'remove the tag {node.tag}, which is not a plain value'
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_object(node, deep)


class YoloDataset(ForeignDataset):
    """A folder with a data.yaml, the YAML file itself, or a folder with a classes.txt.

    With a classes.txt, the splits are the folders images/train, images/val and images/test, or else
    all images of the folder.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        names = ('data.yaml', 'data.yml', 'classes.txt', 'labels/classes.txt')
        files = [source / name for name in names] if source.is_dir() else [source]
        self._file = next(filter(Path.is_file, files), None)
        if self._file is None:
            raise UserError(f'{source}: no data.yaml or classes.txt there: name the YAML file')
        if self._file.suffix == '.txt':
            names = [line for _, line in base.read_lines(self._file)]
            places = self._named_folders()
        else:
            content = self._read_description()
            names = content.get('names')
            if isinstance(names, dict):
                names = [names.get(str(number)) for number in range(len(names))]
            places = self._listed_places(content)
        self.classes = base.check_names(names, self._file)
        self._left, unused = LeftOut(), set()
        for split, of_split in places.items():
            self.splits[split] = [image for place in of_split for image in self._images(place)]
            self._find_labels(self.splits[split])
        for place in {place for of_split in places.values() for place in of_split}:
            unused |= self._labels_below(place)
        unused = filter(_has_labels, sorted(unused - {*self.labels.values()}))
        self.leave_out('Label files without an image', [*unused])
        self.remarks.update(self._left.remarks())

    def _named_folders(self) -> dict[str, list[Path]]:
        """Return the folders images/train and so on, or else all images of the dataset."""
        folder = self.folder / 'images'
        folders = subfolders(folder) if folder.is_dir() else []
        places, unknown = {}, []
        for path in folders:
            split = base.split_of(path.name)
            places.setdefault(split, []).append(path) if split else unknown.append(path)
        if not places:
            return {'train': [self.folder]}
        self.leave_out('Folders that are not called train, val or test', unknown)
        return places

    def _listed_places(self, content: dict) -> dict[str, list[Path]]:
        """Return the folders and lists of images of each split."""
        places, path = {}, content.get('path', '')
        roots = {self.folder, self.folder / path if isinstance(path, str) else self.folder}
        for key, entries in content.items():
            if split := base.split_of(key):
                places.setdefault(split, []).extend(self._find_places(key, content))
            elif key not in NOT_PLACES:
                listed = entries if isinstance(entries, list) else [entries]
                paths = [str(root / e) for root in roots for e in listed if isinstance(e, str)]
                what = f'Folders of the key {key} of {self._file.name}, which is not a split'
                self.leave_out(what, [*filter(os.path.isdir, paths)])
        return places

    def _find_labels(self, images: list[Path]) -> None:
        """Find the label file of each image; its name may be spelled differently."""
        files = {image: _label_file(image) for image in images}
        own = {file for file in files.values() if file.exists()}
        for image, file in files.items():
            if file not in own and len(spelled := {*find_spelled(file)} - own) == 1:
                files[image] = spelled.pop()
        shared = Counter(files.values()) & Counter(2 * [*own])
        twice = [file for file, count in shared.items() if count > 1]
        if twice:
            self.remarks[f'Label files that several images share, such as {twice[0]}'] += len(twice)
        self.labels |= files

    def _labels_below(self, place: Path) -> set[Path]:
        """Return the label files that belong to the images of a folder."""
        if not place.is_dir():
            return set()
        folders = [folder for folder in find_spelled(_mirrored(place)) if folder.is_dir()]
        left = self._left if folders != [place] else None
        return {file for folder in folders for file in find_files(folder, ['.txt'], left)}

    def _read_description(self) -> dict:
        try:
            data = base.read_bytes(self._file)
            content = yaml.load(data, Loader=_Texts)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(f'{self._file}: invalid YAML ({one_line(str(error))})') from None
        if not isinstance(content, dict) or 'kpt_shape' in content:
            raise UserError(
                f'{self._file}: not a dataset with boxes or polygons (keypoints, as in kpt_shape, '
                'are not supported)'
            )
        return content

    def _find_places(self, split: str, content: dict) -> list[Path]:
        """Return the folders and lists of images of a key."""
        entries = content.get(split)
        if entries in EMPTY:
            return []
        path, entries = content.get('path', ''), [entries] if isinstance(entries, str) else entries
        # A list of lists may stand for gigabytes of text: YAML's aliases repeat them.
        if not (isinstance(entries, list) and all(isinstance(e, str) for e in (path, *entries))):
            raise UserError(
                f'{self._file}: path must be a folder, and {split} a path or a list of paths: '
                'correct them or remove them'
            )
        # ``path`` may be a folder on another machine; Roboflow writes one '../' too many.
        roots = self.folder / path, self.folder
        places = []
        for entry in entries:
            names = entry, entry.removeprefix('../')
            candidates = [base.absolute(root / name) for root in roots for name in names]
            place = next(filter(os.path.exists, candidates), None)
            if place is None:
                raise UserError(
                    f'{self._file}: {split}: {entry} does not exist (looked for {candidates[0]}): '
                    'correct the path or remove it'
                )
            places.append(place)
        return places

    def _images(self, place: Path) -> list[Path]:
        if place.is_dir():
            return sorted(find_files(place, left=self._left))
        images = []
        for line_place, line in base.read_lines(place):
            candidates = [base.absolute(folder / line) for folder in (place.parent, self.folder)]
            try:
                images.append(base.find_image(line, candidates, line_place))
            except LabelError as error:
                self.problems.append(error)
        return images

    def read_labels(self, image: Path) -> tuple[list[tuple[str, str]], None]:
        file = self.labels[image]
        return base.read_lines(file) if file.exists() else [], None

    def parse_label(self, label: str, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        number, *values = base.read_numbers(label.split(), place)
        if number not in range(len(self.classes)):
            is_next = number == len(self.classes)
            raise LabelError(
                f'{place}: class {number:g} is not between 0 and {len(self.classes) - 1}, the '
                f'classes in {self._file.name}'
                f'{"; are the classes counted from 1 instead of 0?" if is_next else ""}'
            )
        if max(values, default=0) > MAX_RELATIVE:
            raise LabelError(
                f'{place}: {max(values):g} looks like pixels: divide x and widths by the width of '
                'the image, and y and heights by its height'
            )
        if len(values) == 4:
            x, y, width, height = values
            values = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        elif len(values) < 6 or len(values) % 2:
            raise LabelError(
                f'{place}: {len(values)} numbers after the class instead of the 4 of a box or an '
                'even number of at least 6 for a polygon (keypoints and scores are not supported)'
            )
        self.remarks[ORIENTED] += len(values) == 8
        pixels = [value * side for value, side in zip(values, cycle(size))]
        return self.classes[int(number)], [pixels], False


def _label_file(image: Path) -> Path:
    beside = image.with_suffix('.txt')
    mirrored = _mirrored(beside)
    return beside if beside.exists() and not mirrored.exists() else mirrored


def _has_labels(file: Path) -> bool:
    try:
        return LABEL.match(base.read_bytes(file)) is not None
    except LabelError:
        return False


def _mirrored(path: Path) -> Path:
    """Return the path of the labels that belong to a path of images."""
    return Path(IMAGES.sub('labels', f'{path}{os.sep}'))
