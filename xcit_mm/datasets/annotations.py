"""Annotations of COCO's layout that mmdet drops without a word, or stops at."""

from collections.abc import Container, Iterator
from math import isfinite
from typing import Any, NamedTuple

# Of an annotation.
NO_BOX = 'box is missing or not four finite numbers'
NO_SIZE = 'box of no size'
OUTSIDE = 'box outside the image'
UNKNOWN_CATEGORY = 'unknown category'
NO_MASK = 'mask is missing'
BROKEN_MASK = 'mask is broken'
BROKEN_PART = 'mask has a broken part'
NO_AREA = 'area is missing or no finite number'
NO_CROWD_FLAG = 'iscrowd is missing'
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
IN_TRAINING = {
    NO_BOX: DROPPED,
    NO_SIZE: DROPPED,
    OUTSIDE: DROPPED,
    UNKNOWN_CATEGORY: DROPPED,
    NO_IMAGE: DROPPED,
    NO_MASK: 'ignored',  # the object is neither a target nor background
    BROKEN_MASK: 'ignored',
    BROKEN_PART: 'kept without the part',
}
# Pycocotools reads the file itself, the whole of it.
IN_EVALUATION = {
    NO_BOX: STOPS,
    NO_SIZE: KEPT,
    OUTSIDE: KEPT,
    UNKNOWN_CATEGORY: DROPPED,
    NO_IMAGE: DROPPED,
    NO_MASK: STOPS,
    BROKEN_MASK: STOPS,
    BROKEN_PART: KEPT,
    NO_AREA: STOPS,
    NO_CROWD_FLAG: STOPS,
}

MIN_SIDE = 1  # of a box in pixels, as in mmdet
MIN_NUMBERS = 6  # of a polygon: three corners


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
    box = annotation.get('bbox')
    if not (isinstance(box, list) and len(box) == 4 and all(map(is_number, box))):
        return NO_BOX
    x, y, width, height = box
    if width < MIN_SIDE or height < MIN_SIDE or area(annotation) <= 0:
        return NO_SIZE
    if min(x + width, image['width']) <= max(x, 0) or min(y + height, image['height']) <= max(y, 0):
        return OUTSIDE
    return _mask_problem(annotation.get('segmentation'), image) if with_masks else None


def evaluation_problem(annotation: dict) -> str | None:
    """What pycocotools lacks in an annotation that is good enough for a training."""
    if not is_number(annotation.get('area')):
        return NO_AREA
    return None if 'iscrowd' in annotation else NO_CROWD_FLAG


def area(annotation: dict) -> float:
    """The area in square pixels: the annotated one, or that of the box."""
    annotated = annotation.get('area')
    return annotated if is_number(annotated) else annotation['bbox'][2] * annotation['bbox'][3]


def usable_mask(segmentation: Any, image: dict) -> list | dict:
    """What pycocotools can decode of a mask.

    It does not check what it is given: coordinates that are not finite, or far away, end the
    process; counts that do not fill the image become a mask of random bytes.

    Args:
        segmentation: Polygons, or run lengths of COCO, plain or compressed.
        image: The image, with its ``width`` and ``height`` in pixels.

    Returns:
        The polygons without the broken ones, or the run lengths; an empty list if nothing is left.
    """
    if isinstance(segmentation, list):
        return [polygon for polygon in segmentation if _is_polygon(polygon, image)]
    if isinstance(segmentation, dict) and _fills(segmentation, image):
        return segmentation
    return []


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a finite number."""
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False


def _mask_problem(segmentation: Any, image: dict) -> str | None:
    if not segmentation:
        return NO_MASK
    usable = usable_mask(segmentation, image)
    if not usable:
        return BROKEN_MASK
    return None if len(usable) == len(segmentation) else BROKEN_PART


def _is_polygon(polygon: Any, image: dict) -> bool:
    if not isinstance(polygon, list) or len(polygon) < MIN_NUMBERS or len(polygon) % 2:
        return False
    side = max(image['width'], image['height'])
    try:
        # The sum of numbers is finite only if they are, and quicker than to ask each one.
        return isfinite(sum(polygon)) and -side <= min(polygon) and max(polygon) <= 2 * side
    except (TypeError, OverflowError):
        return False


def _fills(runs: dict, image: dict) -> bool:
    """Whether run lengths are those of a mask of the size of the image."""
    size, counts = [image['height'], image['width']], runs.get('counts')
    if isinstance(counts, str):
        counts = list(_decompressed(counts))
    return (
        runs.get('size') == size
        and isinstance(counts, list)
        and all(type(count) is int and count >= 0 for count in counts)
        and sum(counts) == size[0] * size[1]
    )


def _decompressed(text: str) -> Iterator[int]:
    """COCO's compressed run lengths: five bits a character, from the third on differences.

    In Python, since pycocotools reads on behind the end of a text that is cut off. Yields -1,
    which is no run length, where a character is none of the code or the text ends within a number.
    """
    before: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
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
