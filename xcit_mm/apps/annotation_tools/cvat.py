"""Objects as an XML file in the format "CVAT for images 1.1"."""

from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ...data.importers.base import Shape
from ...data.importers.cvat import FILE
from .objects import AnnotatedImage, AnnotatedObject, smallest_window

ALL = dict(source='auto', occluded='0', z_order='0')  # attributes of all objects


def files(
    classes: Sequence[str], images: Iterable[AnnotatedImage], kind: str
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files for CVAT: one file, which CVAT uploads.

    CVAT has no scores. It finds the images of a task by their names.
    """
    root = Element('annotations')
    SubElement(root, 'version').text = '1.1'
    labels = SubElement(SubElement(SubElement(root, 'meta'), 'task'), 'labels')
    for name in classes:
        SubElement(SubElement(labels, 'label'), 'name').text = name
    for number, image in enumerate(images):
        width, height = map(str, image.size)
        attributes = dict(id=str(number), name=image.name, width=width, height=height)
        element = SubElement(root, 'image', attributes)
        for group, item in enumerate(image.objects, 1):
            _add(element, item, kind, group)
    ElementTree.indent(root)
    yield FILE, ElementTree.tostring(root, 'utf-8', xml_declaration=True)


def _add(image: Element, item: AnnotatedObject, kind: str, group: int) -> None:
    """Add an object; its parts are joined by the number of a group."""
    shapes = item.shapes(kind)
    grouped = dict(group_id=str(group)) if len(shapes) > 1 else {}
    for shape in shapes:
        tag, attributes = _described(shape)
        SubElement(image, tag, dict(label=item.name, **ALL, **grouped, **attributes))


def _described(shape: Shape) -> tuple[str, dict[str, str]]:
    if isinstance(shape, np.ndarray):
        return 'mask', _mask(shape)
    if len(shape) == 4:
        return 'box', dict(zip(('xtl', 'ytl', 'xbr', 'ybr'), map(str, shape), strict=True))
    points = ';'.join(f'{x},{y}' for x, y in zip(shape[::2], shape[1::2], strict=True))
    return 'polygon', dict(points=points)


def _mask(mask: np.ndarray) -> dict[str, str]:
    """Return the run lengths of a mask, row by row in the smallest window with all its pixels."""
    rows, columns = smallest_window(mask)
    pixels = mask[rows, columns].ravel()
    ends = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    lengths = np.diff([0, *ends, pixels.size]).tolist()
    counts = [0, *lengths] if pixels[0] else lengths  # the first run is outside of the mask
    corner = dict(left=columns.start, top=rows.start)
    sides = dict(width=columns.stop - columns.start, height=rows.stop - rows.start)
    return {k: str(v) for k, v in (corner | sides).items()} | {'rle': ', '.join(map(str, counts))}
