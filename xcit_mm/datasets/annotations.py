"""Annotation files of COCO's layout: what mmdet drops without a word, or stops at."""

import json
from collections.abc import Container, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, reason
from ..files import read_regular

# Of an annotation.
NO_BOX = 'box is missing or not four finite numbers'
NO_SIZE = 'box of no size'
OUTSIDE = 'box outside the image'
FAR_BEYOND = 'box reaches far beyond the image'
BEYOND = 'box reaches beyond the image'
UNKNOWN_CATEGORY = 'unknown category'
NO_MASK = 'mask is missing'
BROKEN_MASK = 'mask is broken'
BROKEN_PART = 'mask has a broken part'
NO_AREA = 'area is missing or no finite number'
NO_CROWD_FLAG = 'iscrowd is neither 0 nor 1'
# Of an image.
NO_OBJECTS = 'image without objects'
TOO_SMALL = 'image smaller than filter_cfg.min_size'
# Of both.
NO_IMAGE = 'annotation of an image that is not listed'

# What happens with what is not as it should be.
DROPPED = 'dropped'
LEFT_OUT = 'left out'
KEPT = 'kept'
STOPS = 'stops the run'
IGNORED = 'ignored'  # the object is neither a target nor background
IN_TRAINING = {
    NO_BOX: DROPPED,
    NO_SIZE: DROPPED,
    OUTSIDE: DROPPED,
    FAR_BEYOND: DROPPED,
    BEYOND: KEPT,
    UNKNOWN_CATEGORY: DROPPED,
    NO_IMAGE: DROPPED,
    NO_MASK: IGNORED,
    BROKEN_MASK: IGNORED,
    NO_CROWD_FLAG: IGNORED,
    BROKEN_PART: 'kept without the part',
}
# Pycocotools reads the file itself, the whole of it.
IN_EVALUATION = {
    NO_BOX: STOPS,
    NO_SIZE: KEPT,
    OUTSIDE: KEPT,
    FAR_BEYOND: KEPT,
    BEYOND: KEPT,
    UNKNOWN_CATEGORY: DROPPED,
    NO_IMAGE: DROPPED,
    NO_MASK: STOPS,
    BROKEN_MASK: STOPS,
    BROKEN_PART: KEPT,
    NO_AREA: STOPS,
    NO_CROWD_FLAG: STOPS,
}

# What a model does not learn as it was meant: a few are slips, more than a share another format.
LOST_SHARE = 0.1
LOST = (NO_BOX, NO_SIZE, OUTSIDE, FAR_BEYOND, BEYOND, UNKNOWN_CATEGORY, NO_MASK, BROKEN_MASK)

RELATIVE = (
    'the boxes look like relative coordinates between 0 and 1: multiply them by the width and '
    'height of the image'
)
CORNERS = 'the boxes look like two corners: write x, y, width, height'

MIN_SIDE = 1  # of a box in pixels, as in mmdet
MIN_NUMBERS = 6  # of a polygon: three corners
MARGIN = 0.1  # of a side of the image: what a box reaches beyond it is no rounding

# What pycocotools can count: it computes with 32 bits, and checks nothing.
MAX_SIDE = 2**20  # pixels of an image, also of OpenCV's
MAX_PIXELS = 2**29  # of an image: what a run length of MAX_CHARACTERS can be
MAX_CHARACTERS = 6  # of a compressed run length, of five bits each
MAX_POINTS = 2**22  # of all outlines of a mask, each drawn with POINTS a pixel
POINTS = 5

# What each entry of a list of the file needs.
ID = (int, str)
FIELDS = {
    'images': {'id': ID},
    'annotations': {'id': (int,), 'image_id': ID, 'category_id': ID},
    'categories': {'id': ID, 'name': (str,)},
}
MAX_ID = 2**53  # pycocotools keeps ids as float64
MAX_NAME = 4096  # characters of a path, as of operating systems
IMAGE_FIELDS = {
    'file_name': lambda image: _is_path(image.get('file_name')),
    'width': lambda image: _is_side(image.get('width')),
    'height': lambda image: (
        _is_side(image.get('height')) and image['width'] * image['height'] < MAX_PIXELS
    ),
}


class Problem(NamedTuple):
    """An annotation, or an image of an annotation file, that is not as it should be.

    Attributes:
        kind: One of those of this module.
        image: Path of the image.
        annotation_id: In the file; None if it is the image.
    """

    kind: str
    image: str
    annotation_id: int | None


def read_annotations(path: str | Path) -> dict[str, Any]:
    """Read an annotation file, and check what pycocotools and mmdet rely on in all of it.

    Returns:
        Its content; that of a test set may be without ``annotations``.

    Raises:
        UserError: If it is no file of COCO's layout, an image is of no possible size, or ids are
            not unique.
    """
    try:
        content = json.loads(
            read_regular(Path(path)).decode(), object_pairs_hook=_without_repeated_names
        )
        if not isinstance(content, dict):
            raise ValueError(f'a {type(content).__name__}, not an object')
        for name in FIELDS:
            if name in content or name != 'annotations':
                _check_kinds(content.get(name), name)
    except KeyError as error:
        raise UserError(
            f'{path} is no COCO annotation file: an entry of it has no {error.args[0]}'
        ) from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f'{path} is no COCO annotation file ({reason(error)})') from None
    for image in content['images']:
        for name, is_good in IMAGE_FIELDS.items():
            if not is_good(image):
                raise UserError(
                    f'{path}: the image with the id {image["id"]} has the {name} '
                    f'{image.get(name)!r}: put the right one in'
                )
    for name in FIELDS:
        _check_ids(content.get(name, []), name, path)
    return content


def annotation_problem(
    annotation: dict, image: dict, category_ids: Container, with_masks: bool
) -> str | None:
    """What is wrong with an annotation; mmdet drops those whose box or category it is.

    Args:
        annotation: One of the file.
        image: The image that it is of, with its ``width`` and ``height`` in pixels.
        category_ids: Those of the classes of the dataset.
        with_masks: Whether its mask is used, too.

    Returns:
        Its kind, the first that applies; None if all is well.
    """
    if annotation['category_id'] not in category_ids:
        return UNKNOWN_CATEGORY
    if not is_box(annotation.get('bbox')):
        return NO_BOX
    x, y, width, height = annotation['bbox']
    if width < MIN_SIDE or height < MIN_SIDE or area(annotation) <= 0:
        return NO_SIZE
    if min(x + width, image['width']) <= max(x, 0) or min(y + height, image['height']) <= max(y, 0):
        return OUTSIDE
    if _reaches(annotation['bbox'], image, 1):
        return FAR_BEYOND
    problem = _mask_problem(annotation.get('segmentation'), image) if with_masks else None
    if problem is not None:
        return problem
    if annotation.get('iscrowd') not in (None, 0, 1):
        return NO_CROWD_FLAG
    return BEYOND if _reaches(annotation['bbox'], image, MARGIN) else None


def evaluation_problem(annotation: dict, image: dict, with_masks: bool) -> str | None:
    """What pycocotools stops at, or never ends with, in an annotation of a known category.

    Args:
        annotation: One of the file.
        image: The image that it is of, with its ``width`` and ``height`` in pixels.
        with_masks: Whether masks are evaluated.

    Returns:
        Its kind, the first that applies; None if pycocotools can read it.
    """
    if not is_box(annotation.get('bbox')):
        return NO_BOX
    if not is_number(annotation.get('area')):
        return NO_AREA
    if annotation.get('iscrowd') not in (0, 1):
        return NO_CROWD_FLAG
    if not with_masks:
        return None
    mask = annotation.get('segmentation')
    if not mask:
        return NO_MASK
    if not isinstance(mask, list):
        return None if usable_mask(mask, image) else BROKEN_MASK
    # It takes four numbers in the first place for a box, and what has less for nothing.
    is_drawn = (
        all(_is_within_reach(polygon, image) for polygon in mask)
        and len(mask[0]) > 4
        and _is_drawable(mask, image)
    )
    return None if is_drawn else BROKEN_MASK


def looks_of_box(box: Any, image: dict) -> Iterator[str]:
    """The formats other than COCO's that a box may be of: RELATIVE and CORNERS."""
    if not is_box(box):
        return
    if all(0 <= number <= 1 for number in box):
        yield RELATIVE
    elif box[0] < box[2] <= image['width'] + 1 and box[1] < box[3] <= image['height'] + 1:
        yield CORNERS


def area(annotation: dict) -> float:
    """The area in square pixels: the annotated one, or that of the box."""
    annotated = annotation.get('area')
    return annotated if is_number(annotated) else annotation['bbox'][2] * annotation['bbox'][3]


def usable_mask(segmentation: Any, image: dict) -> list | dict:
    """What pycocotools can decode of a mask.

    It does not check what it is given: coordinates that are not finite, or far away, end the
    process, and outlines without end fill the memory; counts that do not fill the image become a
    mask of random bytes, or are compared for ever.

    Args:
        segmentation: Polygons, or run lengths of COCO, plain or compressed.
        image: The image, with its ``width`` and ``height`` in pixels.

    Returns:
        The polygons without the broken ones, or the run lengths; an empty list if nothing is left.
    """
    if isinstance(segmentation, list):
        polygons = [polygon for polygon in segmentation if _is_polygon(polygon, image)]
        return polygons if _is_drawable(polygons, image) else []
    if isinstance(segmentation, dict) and _fills(segmentation, image):
        return segmentation
    return []


def is_box(value: Any) -> bool:
    """Whether a value of a JSON file is a list of four finite numbers."""
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a finite number."""
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


def _without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the name {repeated!r} twice in one entry')
    return entry


def _check_kinds(entries: Any, name: str) -> None:
    """Raises a KeyError of what is missing, and a ValueError of what is of another kind."""
    if not isinstance(entries, list):
        raise ValueError(f'{name} is a {type(entries).__name__}, not a list')
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError(f'one of {name} is a {type(entry).__name__}, not an object')
    for field, allowed in FIELDS[name].items():
        kinds = {type(entry[field]) for entry in entries}
        if len(kinds) > 1 or not kinds <= {*allowed}:
            found = ', '.join(sorted(kind.__name__ for kind in kinds))
            expected = ' or '.join(f'{kind.__name__} everywhere' for kind in allowed)
            raise ValueError(f'{field} of {name} is {found}, not {expected}')
        if kinds == {int} and max(abs(entry[field]) for entry in entries) > MAX_ID:
            raise ValueError(f'{field} of {name} is beyond 2**53')


def _check_ids(entries: list[dict], name: str, path: str | Path) -> None:
    """The same image may be listed twice; of others, one would take the place of the other."""
    first: dict[int | str, dict] = {}
    for entry in entries:
        same = first.setdefault(entry['id'], entry)
        if same is not entry and (name != 'images' or same != entry):
            raise UserError(
                f'{path} has two {name} with the id {entry["id"]}: give each an id of its own'
            )


def _is_side(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and '\0' not in value


def _mask_problem(segmentation: Any, image: dict) -> str | None:
    if not segmentation:
        return NO_MASK
    usable = usable_mask(segmentation, image)
    if not usable:
        return BROKEN_MASK
    return None if len(usable) == len(segmentation) else BROKEN_PART


def _reaches(box: list, image: dict, share: float) -> bool:
    """Whether a box reaches further beyond the image than a share of its sides."""
    (x, y, width, height), beyond = box, 1 + share
    return (
        x < -share * image['width'] - 1
        or y < -share * image['height'] - 1
        or x + width > beyond * image['width'] + 1
        or y + height > beyond * image['height'] + 1
    )


def _is_polygon(polygon: Any, image: dict) -> bool:
    return (
        _is_within_reach(polygon, image) and len(polygon) >= MIN_NUMBERS and len(polygon) % 2 == 0
    )


def _is_within_reach(polygon: Any, image: dict) -> bool:
    """Whether it is a list of numbers, and none further from the image than its longer side."""
    if not isinstance(polygon, list):
        return False
    side = max(image['width'], image['height'])
    try:
        # The sum of numbers is finite only if they are, and quicker than to ask each one.
        return isfinite(sum(polygon)) and (
            not polygon or (-side <= min(polygon) and max(polygon) <= 2 * side)
        )
    except (TypeError, OverflowError):
        return False


def _is_drawable(polygons: Sequence[list], image: dict) -> bool:
    """Whether pycocotools draws outlines that are within reach with at most MAX_POINTS."""
    longest = POINTS * 3 * max(image['width'], image['height']) + 1  # an edge
    if sum(map(len, polygons)) * longest <= 2 * MAX_POINTS:
        return True
    corners = (np.array(p[: len(p) // 2 * 2], float).reshape(-1, 2) for p in polygons)
    edges = (np.abs(xy - np.roll(xy, 1, axis=0)).max(axis=1) for xy in corners if len(xy))
    return sum(POINTS * edge.sum() + len(edge) for edge in edges) <= MAX_POINTS


def _fills(runs: dict, image: dict) -> bool:
    """Whether run lengths are those of a mask of the size of the image."""
    size, counts = runs.get('size'), runs.get('counts')
    if isinstance(counts, str):
        counts = list(_decompressed(counts))
    return (
        isinstance(size, list)
        and size == [image['height'], image['width']]
        and all(type(side) is int for side in size)
        and isinstance(counts, list)
        and all(type(count) is int and count >= 0 for count in counts)
        and sum(counts) == size[0] * size[1]
    )


def _decompressed(text: str) -> Iterator[int]:
    """COCO's compressed run lengths: five bits a character, from the third on differences.

    In Python, since pycocotools reads on behind the end of a text that is cut off. Yields -1,
    which is no run length, where a character is none of the code, the text ends within a number
    or a number has more characters than pycocotools reads correctly.
    """
    before: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift == 5 * MAX_CHARACTERS:
            yield -1
            return
        number |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:  # it goes on
            continue
        if bits & 0x10:  # it is negative
            number -= 1 << shift
        if len(before) > 2:
            number += before[-2]
        before.append(number)
        yield number
        number = shift = 0
    if shift:
        yield -1
