"""Problems of COCO annotations: what mmdet silently drops and what pycocotools cannot read."""

import json
import re
from collections.abc import Container
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from ..errors import UserError, reason
from ..files import read_regular

# What a run does about a problem.
DROPPED = 'dropped'
LEFT_OUT = 'left out'
KEPT = 'kept'
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
BEYOND = _problem('box reaches beyond the image', KEPT, KEPT)
UNKNOWN_CATEGORY = _problem('unknown category', DROPPED, DROPPED)
NO_IMAGE = _problem('annotation of an image that is not listed', DROPPED, DROPPED)
NO_MASK = _problem('mask is missing', IGNORED, STOPS)
BROKEN_MASK = _problem('mask is broken', IGNORED, STOPS)
BROKEN_PART = _problem('mask has a broken part', 'kept without the part', KEPT)
NO_AREA = _problem('area is missing or not a finite number', KEPT, STOPS)
NO_CROWD_FLAG = _problem('iscrowd is neither 0 nor 1', IGNORED, STOPS)
NO_OBJECTS = _problem('image without objects', LEFT_OUT, KEPT)
TOO_SMALL = _problem('image smaller than filter_cfg.min_size', LEFT_OUT, KEPT)

# If a larger share of the annotations has one of these problems, the format is probably wrong.
LOST_SHARE = 0.1
LOST = (NO_BOX, NO_SIZE, OUTSIDE, FAR_BEYOND, BEYOND, UNKNOWN_CATEGORY, NO_MASK, BROKEN_MASK)

REMEDY = 'tools/check_dataset.py CONFIG lists them all'

# The limits of pycocotools, which computes with 32 bits and does not check its input.
MAX_ID = 2**53  # stored as float64
MAX_SIDE = 2**20  # pixels of an image, also the limit of OpenCV
MAX_PIXELS = 2**29  # of an image; larger run lengths overflow a buffer
MAX_OUTLINE = 2**20  # pixels; five points of each are kept in memory
COMPRESSED = re.compile('[0-o]*[0-O]')  # run lengths; pycocotools reads beyond any other end

FIELDS = {
    'images': {'id': (int, str), 'file_name': (str,), 'width': (int,), 'height': (int,)},
    'annotations': {'id': (int,), 'image_id': (int, str), 'category_id': (int, str)},
    'categories': {'id': (int, str), 'name': (str,)},
}
PANOPTIC_FIELDS = {
    'images': FIELDS['images'],
    'annotations': {'image_id': (int, str), 'file_name': (str,), 'segments_info': (list,)},
    'categories': FIELDS['categories'] | {'isthing': (int,)},
}
SEGMENT_FIELDS = {'id': (int,), 'category_id': (int, str)}


class Problem(NamedTuple):
    """A problem of an annotation, or of an image if ``annotation_id`` is None."""

    kind: str
    image: str  # path
    annotation_id: int | None


def read_annotations(path: str | Path) -> dict[str, Any]:
    """Read an annotation file, and require what pycocotools and mmdet rely on."""
    return _read(path, FIELDS, 'a COCO annotation file')


def read_panoptic_annotations(path: str | Path) -> dict[str, Any]:
    """Read a panoptic annotation file, and require what mmdet relies on."""
    content = _read(path, PANOPTIC_FIELDS, 'a panoptic COCO annotation file')
    category_ids = {category['id'] for category in content['categories']}
    for annotation in content.get('annotations', ()):
        place = f'{path}: image_id={annotation["image_id"]!r}: segments_info'
        try:
            _check_entries(annotation['segments_info'], 'segments_info', SEGMENT_FIELDS)
            for segment in annotation['segments_info']:
                box, values = segment.get('bbox'), (segment.get('area'), segment.get('iscrowd', 0))
                is_complete = isinstance(box, list) and len(box) == 4
                if not is_complete or not all(map(is_number, (*box, *values))):
                    raise ValueError(f'{segment["id"]} needs a numeric bbox, area and iscrowd')
                if segment['category_id'] not in category_ids:
                    raise ValueError(f'{segment["id"]} has an unknown category_id')
        except ValueError as error:
            raise UserError(f'{place}: {error}') from None
    return content


def _read(path: str | Path, fields: dict[str, dict], kind: str) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(Path(path)).decode())
        if not isinstance(content, dict):
            raise ValueError(f'a {type(content).__name__}, not an object')
        for name in fields:
            if name in content or name != 'annotations':  # which the file of a test set lacks
                _check_entries(content.get(name), name, fields[name])
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{path} is not {kind} ({reason(error)})') from None
    return content


def find_problem(
    annotation: dict, image: dict, category_ids: Container, with_masks: bool, in_evaluation: bool
) -> str | None:
    """Return the kind of the first problem of an annotation, or None.

    In an evaluation, what pycocotools would fail or crash at comes first, whatever the box is.
    """
    box, mask, crowd = (annotation.get(name) for name in ('bbox', 'segmentation', 'iscrowd'))
    if annotation['category_id'] not in category_ids:
        return UNKNOWN_CATEGORY
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
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


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


def _check_entries(entries: Any, name: str, fields: dict[str, tuple[type, ...]]) -> None:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'{name} is not a list of objects')
    by_id: dict[int | str, dict] = {}
    for index, entry in enumerate(entries):
        for field, types in fields.items():
            value = entry.get(field)
            is_of_type = type(value) in types and type(value) is type(entries[0].get(field))
            if not is_of_type or (type(value) is int and abs(value) > MAX_ID):
                raise ValueError(f'{name}[{index}] has the {field} {value!r}')
        if name == 'images':
            width, height = entry['width'], entry['height']
            short, long = sorted((width, height))
            if short < 1 or long > MAX_SIDE or width * height >= MAX_PIXELS:
                raise ValueError(f'{name}[{index}] has the size {width}x{height}')
        first = by_id.setdefault(entry['id'], entry) if 'id' in fields else entry
        if first is not entry and (name != 'images' or first != entry):
            raise ValueError(f'{name}[{index}] has the id {entry["id"]!r} of an earlier entry')


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
    """Return whether run lengths are those of every pixel of the image."""
    size, counts = runs.get('size'), runs.get('counts')
    height, width = image['height'], image['width']
    if size != [height, width] or not all(type(side) is int for side in size):
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
