"""Adapts what some tools write into COCO files to what mmdet and pycocotools expect."""

import posixpath
import re
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from ...base.errors import UserError
from ..transforms.rotation import rotated_box

NOT_OF_URL = re.compile('%(?![0-9A-Fa-f]{2})')


def adapt(path: str | Path, content: dict[str, Any]) -> list[str]:
    """Adapt the content of an annotation file in place, and return sentences on what has changed.

    Raises:
        UserError: If a file is listed under several ids with different sizes.
    """
    annotations = [a for a in content.get('annotations', ()) if is_box(a.get('bbox'))]
    rotated = sum([_rotate(annotation) for annotation in annotations])
    measured = sum([_measure(annotation) for annotation in annotations])
    joined = same_files(path, content['images'])
    remarks = []
    if rotated:
        remarks.append(
            f'{rotated} boxes are rotated (attributes.rotation) and become outlines; detectors of '
            'boxes learn the upright boxes around them'
        )
    if measured:
        remarks.append(f'{measured} annotations have an area of 0: the area of the box is used')
    if joined:
        again, first = next(iter(joined.items()))
        remarks.append(
            f'{len(joined)} files are listed under several image ids, such as {first} and {again}, '
            'and their objects are joined'
        )
        _join(content, joined)
    content['images'] = [*{image['id']: image for image in content['images']}.values()]
    return remarks


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


def is_box(box: Any) -> bool:
    """Return whether a value of a JSON file is a list of four finite numbers."""
    return isinstance(box, list) and len(box) == 4 and all(map(is_number, box))


def same_files(path: str | Path, images: list[dict]) -> dict[int, int]:
    """Return the ids of images whose file has an earlier id, and that id.

    Names are those of URLs, unless one of them has a percent sign that no URL has.
    """
    decoded = str if any(NOT_OF_URL.search(i['file_name']) for i in images) else unquote
    first: dict[tuple, dict] = {}
    same = {}
    for image in images:
        name = normalize('NFC', posixpath.normpath(decoded(image['file_name'])))
        other = first.setdefault((name, image.get('frame')), image)
        if other['id'] == image['id']:
            continue
        sizes = [f'{i["width"]}x{i["height"]}' for i in (other, image)]
        if sizes[0] != sizes[1]:
            raise UserError(
                f'{path}: the images {other["id"]} and {image["id"]} are the file '
                f'{image["file_name"]} with {sizes[0]} and {sizes[1]} pixels: remove one of them'
            )
        same[image['id']] = other['id']
    return same


def _join(content: dict[str, Any], same: dict[int, int]) -> None:
    """Give the objects of images to other images, each object once."""
    content['images'] = [image for image in content['images'] if image['id'] not in same]
    targets, seen, joined = {*same.values()}, set(), []
    for annotation in content.get('annotations', ()):
        annotation['image_id'] = same.get(annotation['image_id'], annotation['image_id'])
        described = repr({**annotation, 'id': None})
        if annotation['image_id'] not in targets or described not in seen:
            joined.append(annotation)
        seen.add(described)
    content['annotations'] = joined


def _rotate(annotation: dict) -> bool:
    """Apply the angle that CVAT writes next to a box, and return whether there is one.

    CVAT rotates clockwise around the center of the box.
    """
    attributes = annotation.get('attributes')
    degrees = attributes.get('rotation') if isinstance(attributes, dict) else None
    with suppress(TypeError, ValueError):
        degrees = float(degrees)
    x, y, width, height = annotation['bbox']
    upright = [[x, y, x + width, y, x + width, y + height, x, y + height]]
    has_mask = annotation.get('segmentation') not in (None, [], {}, '', upright)
    if has_mask or not is_number(degrees) or degrees % 360 == 0:
        return False
    center = x + width / 2, y + height / 2
    outline = rotated_box([x, y, x + width, y + height], center, degrees)
    xs, ys = outline[::2], outline[1::2]
    annotation['bbox'] = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    annotation['segmentation'], annotation['area'] = [outline], width * height
    return True


def _measure(annotation: dict) -> bool:
    """Replace an area of 0, with which mmdet would drop the object; return whether it was 0."""
    _, _, width, height = annotation['bbox']
    if not is_number(annotation.get('area')) or annotation['area'] > 0 or min(width, height) <= 0:
        return False
    annotation['area'] = width * height
    return True
