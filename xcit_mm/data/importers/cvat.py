"""The format "CVAT for images 1.1": one XML file."""

from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from ...base.errors import UserError
from ..transforms.rotation import rotated_box
from . import areas, base
from .base import ForeignDataset, Shape, Size

FILE = 'annotations.xml'
NOT_AREAS = ('points', 'polyline', 'tag')
LEFT_OUT = 'Points, lines and tags, which are not objects with an area, left out'


class CvatDataset(ForeignDataset):
    """A folder with an annotations.xml, or the XML file.

    The images are next to the file or in a folder ``images`` there. Subsets that are called train,
    val and test are the splits. The classes are the labels of the task or project. Attributes are
    ignored. Polygons and masks of one label that are grouped are the parts of one object.
    """

    def __init__(self, source: str | Path) -> None:
        source = Path(source)
        super().__init__(source)
        self.classes_file = source / FILE if source.is_dir() else source
        if not self.classes_file.is_file():
            raise UserError(
                f'{source}: no {FILE} there: unpack the export of CVAT, or name the file'
            )
        root = base.read_xml(self.classes_file, 'annotations')
        if root.find('track') is not None:
            raise UserError(
                f'{self.classes_file} holds the tracks of a video: export the task from CVAT as '
                '"CVAT for images 1.1"'
            )
        names = [label.findtext('name') for label in root.findall('meta//labels/label')]
        if names:
            self.classes = base.check_names(names, self.classes_file)
        self._elements: dict[Path, Element] = {}
        for element in root.findall('image'):
            with self.problems.noted(self.classes_file):
                self._add(element)

    def _add(self, element: Element) -> None:
        name, subset = element.get('name', ''), element.get('subset', '')
        folders = (self.folder / part for part in (f'images/{subset}', 'images', subset, ''))
        candidates = [folder / name for folder in folders]
        image = base.find_image(name, candidates, str(self.classes_file))
        self.add_image(image, self.classes_file, subset)
        if subset and base.split_of(subset) is None:
            self.remarks[f'Images of the subset {subset}, used for training'] += 1
        self._elements[image] = element

    def read_labels(self, image: Path) -> tuple[list[tuple[str, list[Element]]], Size]:
        element = self._elements[image]
        place = f'{self.classes_file}: image {element.get("name")}'
        parts = []
        for number, shape in enumerate(element, 1):
            if shape.tag in NOT_AREAS:
                self.remarks[LEFT_OUT] += 1
                continue
            group = shape.get('group_id', '0')
            key = (shape.get('label'), group) if group != '0' and shape.tag != 'box' else None
            parts.append((f'{place}: object {number}', shape, key))
        return base.grouped(parts), (int(element.get('width')), int(element.get('height')))

    def parse_label(
        self, label: list[Element], size: Size, place: str
    ) -> tuple[str, list[Shape], bool]:
        name = base.clean_name(label[0].get('label'))
        return name, [_shape(part, size) for part in label], False


def _shape(element: Element, size: Size) -> Shape:
    def numbers(*names: str) -> list[float]:
        return [float(element.attrib[name]) for name in names]

    degrees = float(element.get('rotation', '0'))
    if element.tag == 'box':
        x1, y1, x2, y2 = box = numbers('xtl', 'ytl', 'xbr', 'ybr')
        return rotated_box(box, ((x1 + x2) / 2, (y1 + y2) / 2), degrees)
    if element.tag == 'ellipse':
        x, y, *radii = numbers('cx', 'cy', 'rx', 'ry')
        return areas.ellipse((x, y), radii, degrees)
    if element.tag == 'polygon':
        return base.read_points([point.split(',') for point in element.attrib['points'].split(';')])
    if element.tag == 'mask':  # the lengths of its runs, row by row
        left, top, width, height = map(int, numbers('left', 'top', 'width', 'height'))
        lengths = [int(number) for number in element.attrib['rle'].split(',')]
        pixels = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
        return areas.placed(pixels.reshape(height, width), (left, top), size)
    raise ValueError(f'a {element.tag} is not supported')
