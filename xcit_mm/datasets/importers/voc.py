"""The format of Pascal VOC: an XML file for each image."""

from pathlib import Path
from xml.etree.ElementTree import Element

from ...errors import UserError
from . import base
from .base import SPLITS, ForeignDataset, LabelError, Shape, Size


class VocDataset(ForeignDataset):
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
        self.read_classes()
        for year in [self.folder] if self.folder in years else years:
            self._find_images(year)

    def _find_images(self, year: Path) -> None:
        folder = year / 'JPEGImages'
        images: dict[str, list[Path]] = {}
        for file in base.image_files(folder):
            images.setdefault(file.stem, []).append(file)
        files = sorted((year / 'Annotations').glob('*'))
        labels = {file.stem: file for file in files if file.suffix.lower() == '.xml'}
        lists = {split: year / 'ImageSets' / 'Main' / f'{split}.txt' for split in SPLITS}
        listed = {split: base.read_lines(file) for split, file in lists.items() if file.exists()}
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

    def read_labels(self, image: Path) -> tuple[list[tuple[str, Element]], Size | None]:
        file = self.labels[image]
        root = base.read_xml(file, 'annotation')
        objects = enumerate(root.findall('object'), 1)
        labels = [(f'{file}: object {number}', element) for number, element in objects]
        sides = [root.findtext(f'size/{side}', '0') for side in ('width', 'height')]
        width, height = map(int, base.read_numbers(sides, f'{file}: size'))
        return labels, (width, height) if width and height else None

    def parse_label(self, label: Element, size: Size, place: str) -> tuple[str, list[Shape], bool]:
        name = base.clean_name(label.findtext('name'), place)
        corners = [label.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        x1, y1, x2, y2 = numbers = base.read_numbers(corners, place)
        if max(numbers) <= 1 and not all(number.is_integer() for number in numbers):
            raise LabelError(
                f'{place}: no corner exceeds 1, so the coordinates look relative: multiply them by '
                'the width and height of the image'
            )
        is_difficult = label.findtext('difficult', '0').strip().lower() in ('1', 'true')
        return name, [[x1 - 1, y1 - 1, x2, y2]], is_difficult  # VOC counts from 1 to the last pixel
