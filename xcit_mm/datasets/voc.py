"""Read Pascal VOC's layout: an XML file for each image, and a list of images for each split."""

from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ..errors import UserError
from . import convert
from .convert import LabelError, LabelledDataset, Size, read_lines, read_numbers


class VocDataset(LabelledDataset):
    """A folder such as VOC2007, or a folder that contains several of them, such as VOCdevkit.

    Without lists in ImageSets/Main, all images that have an XML file are one split. The classes are
    those in the file classes.txt of the folder, or else the names of the objects, sorted.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(Path(source))
        folders = [self.folder, *sorted(self.folder.glob('*'))]
        years = [folder for folder in folders if (folder / 'Annotations').is_dir()]
        if not years:
            raise UserError(
                f'{source} has no folder Annotations with an XML file for each image: name a '
                'folder such as VOC2007'
            )
        names = self.folder / 'classes.txt'
        if names.exists():
            self.classes = convert.check_names([line for _, line in read_lines(names)], names)
        for year in [self.folder] if self.folder in years else years:
            self._find_images(year)

    def _find_images(self, year: Path) -> None:
        folder = year / 'JPEGImages'
        images = {file.stem: file for file in convert.image_files(folder)}
        lists = {split: year / 'ImageSets' / 'Main' / f'{split}.txt' for split in convert.SPLITS}
        listed = {split: read_lines(file) for split, file in lists.items() if file.exists()}
        if not listed:
            labels = sorted((year / 'Annotations').glob('*.xml'))
            listed = {'train': [(str(file), file.stem) for file in labels]}
        for split, entries in listed.items():
            for place, name in entries:
                if name in images:
                    self.splits.setdefault(split, []).append(images[name])
                    self.labels[images[name]] = year / 'Annotations' / f'{name}.xml'
                else:
                    self.problems.append(LabelError(f'{place}: no image {name} in {folder}'))

    def read_labels(self, file: Path) -> tuple[list[tuple[str, Element]], Size | None]:
        data = convert.read_bytes(file)
        if b'<!ENTITY' in data.replace(b'\0', b''):  # in UTF-16, too
            raise LabelError(f'{file}: XML entities are refused, because they can fill the memory')
        try:
            root = ElementTree.fromstring(data)
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
        x1, y1, x2, y2 = read_numbers(corners, place)
        is_difficult = label.findtext('difficult', '0').strip() == '1'
        return name, [x1 - 1, y1 - 1, x2, y2], is_difficult  # VOC counts from 1 to the last pixel
