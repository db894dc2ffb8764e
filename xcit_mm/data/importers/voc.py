"""The format of Pascal VOC: an XML file for each image."""

import re
from pathlib import Path
from xml.etree.ElementTree import Element

from ...base.errors import UserError
from ...base.finder import LeftOut, find_files, spelled, subfolders
from . import base
from .base import SPLITS, ForeignDataset, Shape, Size

IMAGES, ANNOTATIONS = 'JPEGImages', 'Annotations'
OF_CLASS = re.compile(r' (-1|0|1)$')  # the end of a line in a list of the images of a class


class VocDataset(ForeignDataset):
    """A folder such as VOC2007, or a folder that contains several of them, such as VOCdevkit.

    Without lists in ImageSets/Main, all images that have an XML file are one split. The classes are
    those in the file classes.txt of the folder, or else the names of the objects, sorted. The
    folders of images and XML files may have subfolders, such as cam1; lists then name cam1/0000.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(Path(source))
        years = [f for f in (self.folder, *subfolders(self.folder)) if (f / ANNOTATIONS).is_dir()]
        if not years:
            raise UserError(
                f'{source} has no folder {ANNOTATIONS} with an XML file for each image: name a '
                'folder such as VOC2007'
            )
        self.read_classes()
        for year in years[:1] if years[0] == self.folder else years:
            self._find_images(year)

    def _find_images(self, year: Path) -> None:
        left, images, labels = LeftOut(), year / IMAGES, year / ANNOTATIONS
        files = {*find_files(labels, ('.xml',), left)}
        self.remarks.update(left.remarks())
        listed = self._read_lists(year / 'ImageSets' / 'Main')
        for file in sorted(files) if not listed else ():
            name = file.relative_to(labels).with_suffix('').as_posix()
            split = base.split_of(name.partition('/')[0]) or 'train'  # a folder may be a split
            listed.setdefault(split, []).append((str(file), name))
        for split, entries in listed.items():
            for place, name in entries:
                with self.problems.noted(place):
                    name = name.strip('"')  # datumaro quotes names with spaces
                    image = base.find_image(name, [images / name], place)
                    path = image.relative_to(images).with_suffix('')
                    # A file that does not exist is reported when it is read.
                    self.labels[image] = spelled(labels / f'{path}.xml')
                    self.splits.setdefault(split, []).append(image)
        unused = sorted(files - {*self.labels.values()})
        self.leave_out('XML files without an image or not listed', unused)

    def _read_lists(self, folder: Path) -> dict[str, list[tuple[str, str]]]:
        """Return the places and the names of the images of each split."""
        listed, unknown = {}, []
        for file in sorted(folder.glob('*.txt')):
            split, lines = base.split_of(file.stem), base.read_lines(file)
            if split:
                listed.setdefault(split, []).extend(lines)
            elif not all(OF_CLASS.search(line) for _, line in lines):
                unknown.append(file)
        self.leave_out(f'Lists that are not called {", ".join(SPLITS)}', unknown)
        return listed

    def read_labels(self, image: Path) -> tuple[list[tuple[str, Element]], Size | None]:
        file = self.labels[image]
        root = base.read_xml(file, 'annotation')
        objects = enumerate(root.findall('object'), 1)
        labels = [(f'{file}: object {number}', element) for number, element in objects]
        sides = [root.findtext(f'size/{side}', '0') for side in ('width', 'height')]
        width, height = (int(float(side)) for side in sides)
        return labels, (width, height) if width and height else None

    def parse_label(self, label: Element, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        name = base.clean_name(label.findtext('name'))
        corners = [label.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        x1, y1, x2, y2 = numbers = [*map(float, corners)]
        if max(numbers) <= 1 and not all(number.is_integer() for number in numbers):
            raise ValueError(
                'no corner exceeds 1, so the coordinates look relative: multiply them by the width '
                'and height of the image'
            )
        is_difficult = label.findtext('difficult', '0').strip().lower() in ('1', 'true')
        return name, [[x1 - 1, y1 - 1, x2, y2]], is_difficult  # VOC counts from 1 to the last pixel
