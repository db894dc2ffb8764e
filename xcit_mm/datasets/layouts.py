"""Read the layouts of Pascal VOC and YOLO; ``convert.py`` writes what they contain in COCO's."""

import os
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import yaml

from ..errors import UserError, one_line
from ..files import parse_xml
from .convert import (
    SPLITS,
    LabelError,
    LabelledDataset,
    Size,
    absolute,
    check_names,
    image_files,
    read_bytes,
    read_lines,
    read_numbers,
)

IMAGES, LABELS = f'{os.sep}images{os.sep}', f'{os.sep}labels{os.sep}'  # folders with equal trees
MAX_RELATIVE = 2  # larger coordinates of YOLO are in pixels, not slightly beyond the border
TAGS = ('str', 'int', 'float', 'bool', 'null', 'seq', 'map')  # of YAML, for plain values
EMPTY = (None, '', '~', 'null')  # values in YAML, which is read as text


class _Texts(yaml.BaseLoader):
    """Read the values of a YAML file as texts, and refuse tags, which it would ignore."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag.removeprefix('tag:yaml.org,2002:') not in TAGS:
            problem = f'remove the tag {node.tag}, which is not a plain value'
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_object(node, deep)


class VocDataset(LabelledDataset):
    """A folder such as VOC2007, or a folder that contains several of them, such as VOCdevkit.

    Without lists in ImageSets/Main, all images that have an XML file are one split. The classes are
    those in the file classes.txt of the folder, or else the names of the objects, sorted.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(Path(source))
        folders = [Path(source), *sorted(Path(source).glob('*'))]
        years = [folder for folder in folders if (folder / 'Annotations').is_dir()]
        if not years:
            raise UserError(
                f'{source} has no folder Annotations with an XML file for each image: name a '
                'folder such as VOC2007'
            )
        names = self.folder / 'classes.txt'
        if names.exists():
            self.classes = check_names([line for _, line in read_lines(names)], names)
        for year in [self.folder] if self.folder in years else years:
            self._find_images(year)

    def _find_images(self, year: Path) -> None:
        folder = year / 'JPEGImages'
        images: dict[str, list[Path]] = {}
        for file in image_files(folder):
            images.setdefault(file.stem, []).append(file)
        files = sorted((year / 'Annotations').glob('*'))
        labels = {file.stem: file for file in files if file.suffix.lower() == '.xml'}
        lists = {split: year / 'ImageSets' / 'Main' / f'{split}.txt' for split in SPLITS}
        listed = {split: read_lines(file) for split, file in lists.items() if file.exists()}
        if not listed:
            listed = {'train': [(str(file), stem) for stem, file in labels.items()]}
        for split, entries in listed.items():
            for place, name in entries:
                found = images.get(name)
                if found is None:
                    self.problems.append(LabelError(f'{place}: no image {name} in {folder}'))
                elif len(found) > 1:
                    listed = ' or '.join(map(str, found))
                    self.problems.append(LabelError(f'{place}: is the image {listed}?'))
                else:
                    self.splits.setdefault(split, []).extend(found)
                    label = labels.get(name, year / 'Annotations' / f'{name}.xml')
                    self.labels[found[0]] = label

    def read_labels(self, file: Path) -> tuple[list[tuple[str, Element]], Size | None]:
        data = read_bytes(file)
        try:
            root = parse_xml(data)
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            raise LabelError(f'{file}: invalid XML ({error})') from None
        if root.tag != 'annotation':
            raise LabelError(f'{file}: the root element is <{root.tag}> instead of <annotation>')
        objects = enumerate(root.findall('object'), 1)
        labels = [(f'{file}: object {number}', element) for number, element in objects]
        sides = [root.findtext(f'size/{side}', '0') for side in ('width', 'height')]
        width, height = map(int, read_numbers(sides, f'{file}: size'))
        return labels, (width, height) if width and height else None

    def parse_label(self, label: Element, size: Size, place: str) -> tuple[str, list[float], bool]:
        name = ' '.join(label.findtext('name', '').split())
        if not name:
            raise LabelError(f'{place}: the name is missing')
        if self.classes and name not in self.classes:
            raise LabelError(f'{place}: {name} is not a class in classes.txt')
        corners = [label.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        x1, y1, x2, y2 = numbers = read_numbers(corners, place)
        if max(numbers) <= 1 and not all(number.is_integer() for number in numbers):
            raise LabelError(
                f'{place}: no corner exceeds 1, so the coordinates look relative: multiply them by '
                'the width and height of the image'
            )
        is_difficult = label.findtext('difficult', '0').strip().lower() in ('1', 'true')
        return name, [x1 - 1, y1 - 1, x2, y2], is_difficult  # VOC counts from 1 to the last pixel


class YoloDataset(LabelledDataset):
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
            names = [line for _, line in read_lines(self._file)]
            folders = {split: self.folder / 'images' / split for split in splits}
            places = {split: [path] for split, path in folders.items() if path.is_dir()}
            places = places or {'train': [self.folder]}
        else:
            content = self._read_description()
            names = content.get('names')
            if isinstance(names, dict):
                names = [names.get(str(number)) for number in range(len(names))]
            places = {split: self._find_places(split, content) for split in splits}
        self.classes = check_names(names, self._file)
        for split in places:
            self.splits[split] = [image for place in places[split] for image in self._images(place)]
            self.labels |= {image: _label_file(image) for image in self.splits[split]}

    def _read_description(self) -> dict:
        try:
            data = read_bytes(self._file)
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
            candidates = [absolute(root / name) for root in roots for name in names]
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
            return image_files(place)
        images = []
        for line_place, line in read_lines(place):
            candidates = [absolute(folder / line) for folder in (place.parent, self.folder)]
            image = next(filter(os.path.exists, candidates), None)
            if image:
                images.append(image)
            else:
                self.problems.append(LabelError(f'{line_place}: no image {candidates[0]}'))
        return images

    def read_labels(self, file: Path) -> tuple[list[tuple[str, str]], None]:
        return read_lines(file) if file.exists() else [], None

    def parse_label(self, label: str, size: Size, place: str) -> tuple[str, list[float], bool]:
        number, *values = read_numbers(label.split(), place)
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
        pixels = [value * side for value, side in zip(values, cycle(size))]
        return self.classes[int(number)], pixels, False


def _label_file(image: Path) -> Path:
    beside = image.with_suffix('.txt')
    mirrored = Path(LABELS.join(str(beside).rsplit(IMAGES, 1)))
    return beside if beside.exists() and not mirrored.exists() else mirrored
