"""Pascal VOC's layout: an XML file for each image, and lists of the images of a split."""

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ..errors import UserError, reason
from .convert import (
    SPLITS,
    SUFFIXES,
    LabelError,
    LabelledDataset,
    LabelledObject,
    image_size,
    names_of_file,
    read_bytes,
    read_lines,
    read_number,
)
from .images import Size

LABELS, IMAGES, LISTS = 'Annotations', 'JPEGImages', 'ImageSets/Main'
CLASSES = 'classes.txt'
ROOT = 'annotation'
LINE = 'line'  # the attribute that says where an element begins
CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class VocDataset(LabelledDataset):
    """A folder as VOC2007, or one with several of them, as VOCdevkit.

    Without lists, all images that have an XML file are one split. ``classes.txt`` in the folder,
    if it is there, names the classes; otherwise they are those of the objects, sorted.

    Args:
        source: The folder.

    Raises:
        UserError: If it is none, or has not this layout.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(Path(source))
        if not self.folder.is_dir():
            raise UserError(f'{source}: there is no such folder')
        folders = [self.folder, *sorted(p for p in self.folder.iterdir() if p.is_dir())]
        years = [folder for folder in folders if (folder / LABELS).is_dir()]
        if not years:
            raise UserError(
                f'{source} has no {LABELS}, with an XML file for each image, as VOC has it'
            )
        if (self.folder / CLASSES).exists():
            self.classes = names_of_file(self.folder / CLASSES)
        self._labels: dict[Path, Path] = {}  # of each image
        for year in years if years[0] != self.folder else years[:1]:
            self._find_images(year)

    def read(self, image: Path) -> tuple[Size, list[LabelledObject]]:
        file = self._labels[image]
        root = read_xml(file)
        if root.tag != ROOT:
            raise LabelError(f'{file}: it is a <{root.tag}>, not the <{ROOT}> of an image')
        annotated = tuple(
            int(read_number(root.findtext(f'size/{side}', '0'), f'{file}: size'))
            for side in ('width', 'height')
        )
        size = image_size(image, annotated)
        if 0 not in annotated and annotated != size:
            raise LabelError(
                f'{file}: its size is {annotated[0]}x{annotated[1]} pixels, but {image} has '
                f'{size[0]}x{size[1]}'
            )
        objects: list[LabelledObject] = []
        for element in root.findall('object'):
            place = f'{file}:{element.get(LINE)}'
            self.add_object(objects, self._object, element, size, place)
        return size, objects

    def where_labels_are(self, image: Path) -> Path:
        return self._labels[image]

    def _find_images(self, year: Path) -> None:
        images: dict[str, Path] = {}
        folder = year / IMAGES
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix.lower() in SUFFIXES and images.setdefault(path.stem, path) != path:
                other = images[path.stem].name
                error = LabelError(f'{path}: {other} has the same name, and so the same labels')
                self.problems.append(error)
        lists = {split: year / LISTS / f'{split}.txt' for split in SPLITS}
        lists = {split: file for split, file in lists.items() if file.exists()}
        if lists:
            named = {split: read_lines(file) for split, file in lists.items()}
        else:
            labels = sorted((year / LABELS).glob('*.xml'))
            named = {'train': [(str(file), file.stem) for file in labels]}
        for split, names in named.items():
            for place, name in names:
                if name in images:
                    self.splits.setdefault(split, []).append(images[name])
                    self._labels[images[name]] = year / LABELS / f'{name}.xml'
                else:
                    error = LabelError(f'{place}: there is no image {name} in {folder}')
                    self.problems.append(error)

    def _object(self, element: Element, size: Size, place: str) -> LabelledObject:
        name = ' '.join(element.findtext('name', '').split())
        if not name:
            raise LabelError(f'{place}: the object has no name')
        if self.classes and name not in self.classes:
            raise LabelError(f'{place}: {name} is not one of the classes in {CLASSES}')
        texts = [element.findtext(f'bndbox/{corner}') for corner in CORNERS]
        x1, y1, x2, y2 = (read_number(text, place) for text in texts)
        # Pixels count from 1, and the last one belongs to the box.
        box = self.within((x1 - 1, y1 - 1, x2, y2), size, place)
        is_difficult = element.findtext('difficult', '0').strip() == '1'
        return LabelledObject(name, box, is_difficult=is_difficult)


def read_xml(path: Path) -> Element:
    """The root of an XML file; every element has the line that it begins in.

    Raises:
        LabelError: If it is no XML, or declares entities: a small file would become a large one.
    """
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def start(tag: str, attributes: dict[str, str]) -> None:
        builder.start(tag, attributes | {LINE: str(parser.CurrentLineNumber)})

    def refuse(*args: object) -> None:
        raise LabelError(f'{path}:{parser.CurrentLineNumber}: it declares an entity; take it out')

    parser.StartElementHandler = start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(read_bytes(path), True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # the last of an encoding
        raise LabelError(
            f'{path}:{parser.CurrentLineNumber}: it is no XML ({reason(error)})'
        ) from None
    return builder.close()
