"""The format of YOLO: a YAML file, and a text file for each image."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import yaml

from ...base.errors import UserError
from ...base.files import read_regular
from ...base.finder import LeftOut, find_files, find_spelled, subfolders
from . import base
from .base import ForeignDataset, Shape, Size

# The last folder of this name in a path.
IMAGES = re.compile(r'(?<=[/\\])images(?=[/\\])(?!.*[/\\]images[/\\])', re.I)
MAX_RELATIVE = 2  # larger coordinates of YOLO are in pixels, not slightly beyond the border
ORIENTED = (
    'Outlines of four corners, as YOLO writes oriented boxes (OBB); detectors of boxes learn the '
    'upright boxes around them, without the angle'
)
LABEL = re.compile(rb'\s*\d+\.?\d*\s')  # the start of a file of labels
EMPTY = (None, '', '~', 'null')  # values in YAML that is read as text


class YoloDataset(ForeignDataset):
    """A folder with a data.yaml, the YAML file itself, or a folder with a classes.txt.

    With a classes.txt, or a data.yaml that names only the classes, the splits are the folders
    images/train, images/val and images/test, or else all images of the folder.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        names = ('data.yaml', 'data.yml', 'classes.txt', 'labels/classes.txt')
        files = [source / name for name in names] if source.is_dir() else [source]
        file = next(filter(Path.is_file, files), None)
        if file is None:
            raise UserError(
                f'{source}: no data.yaml or classes.txt there: pass the path of the YAML file, or '
                'write classes.txt with one name in each line'
            )
        self.classes_file, self._left = file, LeftOut()
        if file.suffix == '.txt':
            names = [line for _, line in base.read_lines(file)]
            places = self._named_folders()
        else:
            with base.named(file):  # names such as yes and 2 are texts
                content = yaml.load(read_regular(file), Loader=yaml.BaseLoader)
                names, places = content['names'], self._listed_places(content)
            places = places if any(places.values()) else self._named_folders()
            if isinstance(names, dict):
                names = [names.get(str(number)) for number in range(len(names))]
        self.classes = base.check_names(names, file)
        for split, of_split in places.items():
            self.splits[split] = [image for place in of_split for image in self._images(place)]
            self.labels |= _label_files(self.splits[split])
        folders = {place for of_split in places.values() for place in of_split if place.is_dir()}
        unused = {file for folder in folders for file in self._labels_below(folder)}
        unused = sorted(unused - {*self.labels.values()})
        unused = [file for file in unused if LABEL.match(file.read_bytes())]
        self.leave_out('Label files without an image', unused)
        self.remarks.update(self._left.remarks())

    def _named_folders(self) -> dict[str, list[Path]]:
        """Return the folders images/train and so on, or else all images of the dataset."""
        folder = self.folder / 'images'
        places, unknown = {}, []
        for path in subfolders(folder) if folder.is_dir() else []:
            split = base.split_of(path.name)
            places.setdefault(split, []).append(path) if split else unknown.append(path)
        if not places:
            return {'train': [self.folder]}
        self.leave_out('Folders that are not called train, val or test', unknown)
        return places

    def _listed_places(self, content: dict) -> dict[str, list[Path]]:
        """Return the folders and lists of images of each split.

        As in ultralytics, a test split may be missing, and ``path`` may be relative to the current
        folder. It may also be a folder on another machine.
        """
        places, path = {}, content.get('path', '')
        roots = (self.folder / path, self.folder, *([Path(path)] if path else []))
        for key, entries in content.items():
            entries = entries if isinstance(entries, list) else [entries]
            if split := base.split_of(key):
                found = [self._find_place(roots, key, e) for e in entries if e not in EMPTY]
                places.setdefault(split, []).extend(filter(None, found))
            elif key not in ('path', 'names'):
                texts = [entry for entry in entries if type(entry) is str]
                paths = [base.absolute(root / entry) for root in roots for entry in texts]
                what = f'Folders of the key {key} of {self.classes_file.name}, which is not a split'
                self.leave_out(what, [*filter(os.path.isdir, dict.fromkeys(paths))])
        return places

    def _find_place(self, roots: Sequence[Path], key: str, entry: str) -> Path | None:
        """Return a folder or a list of images, or None for a test split that does not exist.

        Roboflow writes one '../' too many.
        """
        names = entry, entry.removeprefix('../')
        candidates = [base.absolute(root / name) for root in roots for name in names]
        place = next(filter(os.path.exists, candidates), None)
        if place is None and base.split_of(key) == 'test':
            self.leave_out(f'Missing folders of the key {key}', [candidates[0]])
        elif place is None:
            folders = ' or '.join(dict.fromkeys(str(base.absolute(root)) for root in roots))
            raise ValueError(
                f'{key}: {entry} does not exist in {folders}: correct it, or path, the folder of '
                'the dataset'
            )
        return place

    def _labels_below(self, place: Path) -> Iterator[Path]:
        """Yield the label files that belong to the images of a folder."""
        for folder in filter(Path.is_dir, find_spelled(_mirrored(place))):
            yield from find_files(folder, ['.txt'], None if folder == place else self._left)

    def _images(self, place: Path) -> list[Path]:
        if place.is_dir():
            return sorted(find_files(place, left=self._left))
        images = []
        for line_place, line in base.read_lines(place):
            with self.problems.noted(line_place):
                candidates = [folder / line for folder in (place.parent, self.folder)]
                images.append(base.find_image(line, candidates, line_place))
        return images

    def read_labels(self, image: Path) -> tuple[list[tuple[str, str]], None]:
        file = self.labels[image]
        return base.read_lines(file) if file.exists() else [], None

    def parse_label(self, label: str, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        number, *values = map(float, label.split())
        if number not in range(len(self.classes)):
            is_next = number == len(self.classes)
            raise ValueError(
                f'class {number:g} is not between 0 and {len(self.classes) - 1}, the classes in '
                f'{self.classes_file.name}'
                f'{"; are the classes counted from 1 instead of 0?" if is_next else ""}'
            )
        if max(values, default=0) > MAX_RELATIVE:
            raise ValueError(
                f'{max(values):g} looks like pixels: divide x and widths by the width of the '
                'image, and y and heights by its height'
            )
        if len(values) == 4:
            x, y, width, height = values
            values = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        elif len(values) < 6 or len(values) % 2:
            raise ValueError(
                f'{len(values)} numbers after the class instead of the 4 of a box or an even '
                'number of at least 6 for a polygon (keypoints and scores are not supported)'
            )
        self.remarks[ORIENTED] += len(values) == 8
        pixels = [value * side for value, side in zip(values, cycle(size))]
        return self.classes[int(number)], [pixels], False


def _label_files(images: list[Path]) -> dict[Path, Path]:
    """Return the label file of each image; its name may be spelled differently."""
    files = {}
    for image in images:
        neighbor = image.with_suffix('.txt')
        mirrored = _mirrored(neighbor)
        files[image] = neighbor if neighbor.exists() and not mirrored.exists() else mirrored
    own = {file for file in files.values() if file.exists()}
    for image, file in files.items():
        if file not in own and len(spelled := {*find_spelled(file)} - own) == 1:
            files[image] = spelled.pop()
    return files


def _mirrored(path: Path) -> Path:
    """Return the path of the labels that belong to a path of images."""
    return Path(IMAGES.sub('labels', f'{path}{os.sep}'))
