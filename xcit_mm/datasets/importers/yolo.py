"""The format of YOLO: a YAML file, and a text file for each image."""

import os
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from ...errors import UserError, one_line
from . import base
from .base import ForeignDataset, LabelError, Shape, Size

IMAGES, LABELS = f'{os.sep}images{os.sep}', f'{os.sep}labels{os.sep}'  # folders with equal trees
MAX_RELATIVE = 2  # larger coordinates of YOLO are in pixels, not slightly beyond the border
TAGS = ('str', 'int', 'float', 'bool', 'null', 'seq', 'map')  # of YAML, for plain values
ORIENTED = (
    'Outlines of four corners, as YOLO writes oriented boxes (OBB); detectors of boxes learn the '
    'upright boxes around them, without the angle'
)
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
        splits = ('train', 'val', 'test')
        names = ('data.yaml', 'data.yml', 'classes.txt', 'labels/classes.txt')
        files = [source / name for name in names] if source.is_dir() else [source]
        self._file = next(filter(Path.is_file, files), None)
        if self._file is None:
            raise UserError(f'{source}: no data.yaml or classes.txt there: name the YAML file')
        if self._file.suffix == '.txt':
            names = [line for _, line in base.read_lines(self._file)]
            folders = {split: self.folder / 'images' / split for split in splits}
            places = {split: [path] for split, path in folders.items() if path.is_dir()}
            places = places or {'train': [self.folder]}
        else:
            content = self._read_description()
            names = content.get('names')
            if isinstance(names, dict):
                names = [names.get(str(number)) for number in range(len(names))]
            places = {split: self._find_places(split, content) for split in splits}
        self.classes = base.check_names(names, self._file)
        for split in places:
            self.splits[split] = [image for place in places[split] for image in self._images(place)]
            self.labels |= {image: _label_file(image) for image in self.splits[split]}

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
        """Return the folders and lists of images of a split."""
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
            return base.image_files(place)
        images = []
        for line_place, line in base.read_lines(place):
            candidates = [base.absolute(folder / line) for folder in (place.parent, self.folder)]
            image = next(filter(os.path.exists, candidates), None)
            if image:
                images.append(image)
            else:
                self.problems.append(LabelError(f'{line_place}: no image {candidates[0]}'))
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
    mirrored = Path(LABELS.join(str(beside).rsplit(IMAGES, 1)))
    return beside if beside.exists() and not mirrored.exists() else mirrored
