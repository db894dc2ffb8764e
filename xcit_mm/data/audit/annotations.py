"""Problems of COCO annotations: what mmdet silently drops and what pycocotools cannot read."""

import json
import re
from collections.abc import Container, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from ...base.errors import UserError, reason
from ...base.files import read_regular
from ..datasets.tool_annotations import adapt, is_box, is_number

# What a run does about a problem.
DROPPED = 'dropped'
LEFT_OUT = 'left out'
KEPT = 'kept'
CLIPPED = 'clipped to the image'
IGNORED = 'ignored'  # the object is neither a target nor background
STOPS = 'stops the run'
CONSEQUENCES: dict[str, tuple[str, str]] = {}  # of each problem, in training and in evaluation


def _problem(kind: str, in_training: str, in_evaluation: str) -> str:
    CONSEQUENCES[kind] = in_training, in_evaluation
    return kind


NO_BOX = _problem('box is missing or not four finite numbers', DROPPED, STOPS)
NO_SIZE = _problem('box of no size', DROPPED, KEPT)
OUTSIDE = _problem('box outside the image', DROPPED, KEPT)
FAR_BEYOND = _problem('box reaches far beyond the image', DROPPED, KEPT)
BEYOND = _problem('box reaches beyond the image', CLIPPED, KEPT)
UNKNOWN_CATEGORY = _problem('unknown category', DROPPED, DROPPED)
NO_IMAGE = _problem('annotation of an image that is not listed', DROPPED, DROPPED)
NO_MASK = _problem('mask is missing', IGNORED, STOPS)
BROKEN_MASK = _problem('mask is broken', IGNORED, STOPS)
BROKEN_PART = _problem('mask has a broken part', 'kept without the part', KEPT)
NO_AREA = _problem('area is missing or not a finite number', KEPT, STOPS)
NO_CROWD_FLAG = _problem('iscrowd is neither 0 nor 1', IGNORED, STOPS)
NO_OBJECTS = _problem('image without objects', LEFT_OUT, KEPT)
NO_ANNOTATION = _problem('image without an annotation', LEFT_OUT, STOPS)
TOO_SMALL = _problem('image smaller than filter_cfg.min_size', LEFT_OUT, KEPT)

# If a larger share of the annotations has one of these problems, the format is probably wrong.
LOST_SHARE = 0.1
LOST = (NO_BOX, NO_SIZE, OUTSIDE, FAR_BEYOND, UNKNOWN_CATEGORY, NO_MASK, BROKEN_MASK)

HINT = 'tools/check_dataset.py CONFIG lists them all'

# If a larger share of the boxes cannot be two corners, boxes may reach beyond the image.
NO_CORNERS_SHARE = 0.01

# The limits of pycocotools: it computes with 32 bits and does not check its input.
MAX_ID = 2**53  # stored as float64
MAX_PIXELS = 2**29  # of an image with masks; larger run lengths overflow a buffer
MAX_OUTLINE = 2**20  # pixels; five points of each are kept in memory
COMPRESSED = re.compile('[0-o]*[0-O]')  # run lengths; pycocotools reads beyond any other end

ID = (int, str)  # texts become integers: pycocotools needs them
FIELDS = {
    'images': {'id': ID, 'file_name': (str,), 'width': (int,), 'height': (int,)},
    'annotations': {'id': ID, 'image_id': ID, 'category_id': ID},
    'categories': {'id': ID, 'name': (str,)},
}
FLAGS = ('iscrowd', 'ignore')  # fields of an annotation; the text '0' would count as true
SEGMENTS = 'segments_info'
PANOPTIC_FIELDS = {
    'images': FIELDS['images'],
    'annotations': {'image_id': ID, 'file_name': (str,), SEGMENTS: (list,)},
    'categories': FIELDS['categories'] | {'isthing': (int, bool)},
}
SEGMENT_FIELDS = {'id': (int,), 'category_id': ID}
WHOLE_NUMBER = re.compile(r'([+-]?[0-9]{1,18})(\.0*)?')


class Problem(NamedTuple):
    """A problem of an annotation, or of an image if ``annotation_id`` is None."""

    kind: str
    image: str  # path
    annotation_id: int | float | str | None  # as in the file


class Annotations(NamedTuple):
    """The content of an annotation file, and a sentence on what was converted ('' if nothing)."""

    content: dict[str, Any]
    remark: str


def read_annotations(path: str | Path, encodes_masks: bool = True) -> Annotations:
    """Read an annotation file, and require what pycocotools and mmdet rely on.

    ``encodes_masks`` says whether pycocotools will encode masks, each as large as its image.
    Whole numbers in another form, such as 640.0 or '000640', become integers. If the id of an image
    is negative, above MAX_ID or another text, the images are numbered from 1 in the order of the
    file, and so are the categories. Such ids of annotations stay as they are. See also
    :func:`.tool_annotations.adapt`.
    """
    content, converted = _read(path, FIELDS, 'a COCO annotation file')
    annotations = content.get('annotations', [])
    if encodes_masks:
        require_few_pixels(path, content['images'])
    remarks = _number_texts(content, annotations, converted) + adapt(path, content)
    return Annotations(content, f'{path}: {"; ".join(remarks)}' if remarks else '')


def require_few_pixels(path: str | Path, images: Sequence[dict]) -> None:
    """Refuse images of an annotation file whose masks pycocotools cannot encode."""
    for image in images:
        require_encodable(f'{path}: {image["file_name"]}', (image['height'], image['width']))


def require_encodable(image: str, size: tuple[int, int]) -> None:
    """Refuse an image of a size (H, W) whose masks pycocotools cannot encode."""
    height, width = size
    if height * width >= MAX_PIXELS:
        raise UserError(
            f'{image} has {width}x{height} pixels, but pycocotools encodes masks of fewer than '
            f'{MAX_PIXELS} pixels: cut the image, or use boxes only (with_mask=False, and no segm '
            'in the metric)'
        )


def read_panoptic_annotations(path: str | Path) -> Annotations:
    """Read a panoptic annotation file, and require what mmdet relies on.

    Numbers are converted as by :func:`read_annotations`.
    """
    content, converted = _read(path, PANOPTIC_FIELDS, 'a panoptic COCO annotation file')
    require_few_pixels(path, content['images'])
    with_category = []
    for annotation in content.get('annotations', ()):
        try:
            converted |= _check_entries(annotation[SEGMENTS], SEGMENTS, SEGMENT_FIELDS)
        except ValueError as error:
            image = f'image_id={annotation["image_id"]!r}'
            raise UserError(f'{path}: {image}: {SEGMENTS}: {error}') from None
        with_category += annotation[SEGMENTS]
    remarks = _number_texts(content, with_category, converted)
    return Annotations(content, f'{path}: {"; ".join(remarks)}' if remarks else '')


def _read(path: str | Path, fields: dict[str, dict], kind: str) -> tuple[dict, dict[str, None]]:
    converted: dict[str, None] = {}
    try:
        content = json.loads(read_regular(Path(path)).decode('utf-8-sig'))
        if not isinstance(content, dict):
            raise ValueError(f'a {type(content).__name__}, not an object')
        for name in fields:
            if name in content or name != 'annotations':  # which the file of a test set lacks
                converted |= _check_entries(content.get(name), name, fields[name])
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{path} is not {kind} ({reason(error)})') from None
    return content, converted


def find_problem(
    annotation: dict, image: dict, category_ids: Container, with_masks: bool, in_evaluation: bool
) -> str | None:
    """Return the kind of the first problem of an annotation, or None.

    In an evaluation, what pycocotools would fail or crash at comes first, whatever the box is.
    """
    box, mask, crowd = (annotation.get(name) for name in ('bbox', 'segmentation', 'iscrowd'))
    if annotation['category_id'] not in category_ids:
        return UNKNOWN_CATEGORY
    if not is_box(box):
        return NO_BOX
    box_problem = _find_box_problem(annotation, image)
    if box_problem and not in_evaluation:
        return box_problem
    if in_evaluation and not is_number(annotation.get('area')):
        return NO_AREA
    if crowd not in ((0, 1) if in_evaluation else (None, 0, 1)):
        return NO_CROWD_FLAG
    usable = usable_mask(mask, image) if with_masks else mask
    if with_masks and (not usable or (in_evaluation and not _is_readable(mask, image))):
        return BROKEN_MASK if mask else NO_MASK
    if box_problem or usable != mask:
        return box_problem or BROKEN_PART
    return BEYOND if _reaches_beyond(box, image, share=0.1) else None


def may_be_corners(annotation: dict, image: dict) -> bool:
    """Return whether a box, read as x1, y1, x2, y2, lies within the image, or there is no box."""
    if not is_box(annotation.get('bbox')):
        return True
    x1, y1, x2, y2 = annotation['bbox']
    return -1 <= x1 < x2 <= image['width'] + 1 and -1 <= y1 < y2 <= image['height'] + 1


def _find_box_problem(annotation: dict, image: dict) -> str | None:
    x, y, width, height = box = annotation['bbox']
    if width < 1 or height < 1 or area(annotation) <= 0:  # the limits of mmdet
        return NO_SIZE
    if min(x + width, image['width']) <= max(x, 0) or min(y + height, image['height']) <= max(y, 0):
        return OUTSIDE
    return FAR_BEYOND if _reaches_beyond(box, image, share=1) else None


def usable_mask(segmentation: Any, image: dict) -> list | dict:
    """Return the valid polygons or the run lengths of a mask, or an empty list.

    With anything else, pycocotools may end the process, fill the memory, compare masks forever or
    return random pixels.
    """
    if isinstance(segmentation, dict):
        return segmentation if _cover_image(segmentation, image) else []
    polygons = segmentation if isinstance(segmentation, list) else []
    drawable = [polygon for polygon in polygons if _is_drawable(polygon, image)]
    return [p for p in drawable if len(p) >= 6 and len(p) % 2 == 0]  # three corners and more


def area(annotation: dict) -> float:
    """Return the annotated area in square pixels, or else the area of the box."""
    annotated = annotation.get('area')
    return annotated if is_number(annotated) else annotation['bbox'][2] * annotation['bbox'][3]


def _check_entries(entries: Any, name: str, fields: dict[str, tuple[type, ...]]) -> dict[str, None]:
    """Check and convert the fields of a list of objects, and return those converted."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'{name} is not a list of objects')
    by_id: dict[int | str, dict] = {}
    converted: dict[str, None] = {}
    for index, entry in enumerate(entries):
        for field, types in fields.items():
            value = entry.get(field)
            if int in types and type(value) in (float, str):
                entry[field] = value = _whole_number(value)
                converted[f'{name}.{field}'] = None
            if type(value) not in types:
                raise ValueError(f'{name}[{index}] has the {field} {value!r}')
        for flag in FLAGS:
            if type(entry.get(flag)) in (float, str):
                number = _whole_number(entry[flag])
                if number not in (0, 1):
                    raise ValueError(f'{name}[{index}] has the {flag} {entry[flag]!r}, not 0 or 1')
                entry[flag] = number
                converted[f'{name}.{flag}'] = None
        first = by_id.setdefault(entry['id'], entry) if 'id' in fields else entry
        if first is not entry and (name != 'images' or first != entry):
            raise ValueError(f'{name}[{index}] has the id {entry["id"]!r} of an earlier entry')
    return converted


def _whole_number(value: float | str) -> int | float | str:
    """Return the integer that a number or a text stands for, or the value itself."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    match = WHOLE_NUMBER.fullmatch(value)
    return int(match[1]) if match else value


def _number_texts(
    content: dict, with_category: list[dict], converted: dict[str, None]
) -> list[str]:
    """Number images and categories whose ids are not 0 to MAX_ID, and return remarks.

    faster-coco-eval requires ids of images that are not negative.
    """
    numbered = []
    for name, field, users in (
        ('images', 'image_id', content.get('annotations', [])),
        ('categories', 'category_id', with_category),
    ):
        ids = [entry['id'] for entry in content[name]]
        if all(type(id_) is int and 0 <= id_ <= MAX_ID for id_ in ids):
            continue
        numbers = {id_: number for number, id_ in enumerate(dict.fromkeys(ids), 1)}
        for entry in content[name]:
            entry['id'] = numbers[entry['id']]
        for user in users:  # an id that is not listed becomes a text: it equals no number
            user[field] = numbers.get(user[field], str(user[field]))
        numbered.append(name)
        converted = {k: None for k in converted if k != f'{name}.id' and not k.endswith(field)}
    remarks = []
    if converted:
        remarks.append(f'{", ".join(converted)} are texts or floats and are converted to integers')
    if numbered:
        remarks.append(f'{" and ".join(numbered)} are numbered from 1 in the order of the file')
    return remarks


def _reaches_beyond(box: list, image: dict, share: float) -> bool:
    """Return whether a box reaches beyond the image by more than a share of its sides."""
    return any(
        start < -share * side - 1 or start + size > (1 + share) * side + 1
        for start, size, side in zip(box, box[2:], (image['width'], image['height']), strict=False)
    )


def _is_readable(mask: list | dict, image: dict) -> bool:
    """Return whether pycocotools can read a mask that it may not draw some polygons of."""
    # If the first polygon has four numbers, pycocotools takes all polygons for boxes.
    return isinstance(mask, dict) or (
        all(_is_drawable(polygon, image) for polygon in mask) and len(mask[0]) > 4
    )


def _is_drawable(polygon: Any, image: dict) -> bool:
    """Return whether a polygon is a list of numbers, none far away, and its outline is short."""
    side = max(image['width'], image['height'])
    try:  # the sum is finite only if every number is, and quicker than asking each of them
        is_finite = isinstance(polygon, list) and isfinite(sum(polygon))
    except (TypeError, OverflowError):
        return False
    if not is_finite or min(polygon, default=0) < -side or max(polygon, default=0) > 2 * side:
        return False
    if len(polygon) * 3 * side <= MAX_OUTLINE:
        return True
    corners = np.reshape(polygon[: len(polygon) // 2 * 2], (-1, 2))
    edges = np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1)
    return edges.sum() + len(edges) <= MAX_OUTLINE


def _cover_image(runs: dict, image: dict) -> bool:
    """Return whether run lengths cover every pixel of the image."""
    size, counts = runs.get('size'), runs.get('counts')
    height, width = image['height'], image['width']
    if size != [height, width] or not all(type(side) is int for side in size):
        return False
    if height * width >= MAX_PIXELS:
        return False
    if isinstance(counts, list):
        are_lengths = all(type(count) is int and count >= 0 for count in counts)
        return are_lengths and sum(counts) == height * width
    if not isinstance(counts, str) or not COMPRESSED.fullmatch(counts):
        return False
    try:
        mask = coco_mask.decode(runs)
    except ValueError:  # more pixels than the image has
        return False
    # If the run lengths end early, the rest of the mask is random, and its encoding is longer.
    return coco_mask.encode(mask)['counts'] == counts.encode()
