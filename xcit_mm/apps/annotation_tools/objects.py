"""Objects of images as annotation tools show them: boxes, polygons and masks."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import shapely
from pycocotools import mask as coco_mask

from ...base.errors import one_line, printable
from ...data.audit.annotations import read_annotations, usable_mask
from ...data.importers.areas import joined
from ...data.importers.base import Shape, Size, absolute
from ...large.labels.outlines import outlines_of
from ...predict.write.written import PREDICTIONS

BOXES, POLYGONS, MASKS = SHAPE_KINDS = ('boxes', 'polygons', 'masks')
TOLERANCE = 0.5  # pixels between a polygon and the outline of its mask
SMALLEST_PART = 0.01  # of the largest part of a mask; smaller parts have no polygon


@dataclass(frozen=True)
class AnnotatedObject:
    """An object of an image.

    Attributes:
        name: Its class.
        box: x1, y1, x2, y2 in pixels.
        area: Its polygon or mask, see :data:`.Shape`; None if it has only a box.
        size: The width and height of the image.
        score: 0..1; None for an annotation.
    """

    name: str
    box: Sequence[float]
    area: Shape | None
    size: Size
    score: float | None = None

    @property
    def kind(self) -> str:
        """What the object is, one of ``SHAPE_KINDS``."""
        if self.area is None:
            return BOXES
        return MASKS if isinstance(self.area, np.ndarray) else POLYGONS

    def shapes(self, kind: str) -> list[Shape]:
        """Return its box, the polygons of its parts, or its mask.

        An object without an area is a box, and one without a mask has its own polygon. Polygons of
        a mask are simplified and do not have its holes and its smallest parts.
        """
        if kind == BOXES or self.area is None:
            return [self.box]
        return self._polygons if (kind, self.kind) == (POLYGONS, MASKS) else [self.area]

    @cached_property
    def _polygons(self) -> list[Shape]:
        outlines, _ = outlines_of(self.area.view(np.uint8), self.area)
        filled = shapely.polygons(shapely.get_exterior_ring(outlines))
        areas = shapely.area(filled)
        polygons = shapely.simplify(filled[areas >= SMALLEST_PART * areas.max()], TOLERANCE)
        return [shapely.get_coordinates(polygon)[:-1].ravel().tolist() for polygon in polygons]


class AnnotatedImage(NamedTuple):
    """An image with its objects; ``name`` is its path below the folder of all images."""

    path: Path
    name: str
    size: Size
    objects: list[AnnotatedObject]


def read_objects(
    path: Path, folder: Path, score_thr: float, kind: str = MASKS
) -> tuple[list[str], Iterator[AnnotatedImage]]:
    """Read the classes and the images of predictions.json, or of another file in COCO's format.

    ``path`` is the file or its folder, and the paths of images are relative to ``folder``. Objects
    with a lower score are left out. Masks are decoded when an image is asked for, and not at all if
    ``kind`` is ``BOXES``.

    Raises:
        UserError: If the file cannot be used.
    """
    path = path / PREDICTIONS if path.is_dir() else path
    content, remark = read_annotations(path, encodes_masks=kind != BOXES)
    if remark:
        print(printable(remark))
    names = {category['id']: one_line(category['name']) for category in content['categories']}
    return [*names.values()], _images(path, content, names, folder, score_thr, kind)


def _images(
    path: Path, content: dict, names: dict[int, str], folder: Path, score_thr: float, kind: str
) -> Iterator[AnnotatedImage]:
    annotations = defaultdict(list)
    for annotation in content.get('annotations', ()):
        if kind == BOXES:
            annotation.pop('segmentation', None)
        annotations[annotation['image_id']].append(annotation)
    paths = [absolute(folder / image['file_name']) for image in content['images']]
    for image, file, name in zip(content['images'], paths, names_of(paths), strict=True):
        objects = [
            _parsed(annotation, image, names, f'{path}: annotation {annotation["id"]}')
            for annotation in annotations[image['id']]
            if score_thr <= annotation.get('score', 1)
        ]
        size = image['width'], image['height']
        yield AnnotatedImage(file, name, size, objects)


def names_of(files: Sequence[PurePath]) -> list[str]:
    """Return the paths of files in the folder that they share, or else in their Windows drives."""
    try:
        common = os.path.commonpath([file.parent for file in files])
    except ValueError:  # several drives
        return [file.relative_to(file.anchor).as_posix() for file in files]
    return [file.relative_to(common).as_posix() for file in files]


def _parsed(annotation: dict, image: dict, names: dict[int, str], place: str) -> AnnotatedObject:
    usable = usable_mask(annotation.get('segmentation'), image)
    x, y, width, height = annotation['bbox']
    size = image['width'], image['height']
    common = names[annotation['category_id']], (x, y, x + width, y + height)
    return AnnotatedObject(*common, _area(usable, size, place), size, annotation.get('score'))


def _area(segmentation: list | dict, size: Size, place: str) -> Shape | None:
    """Return the polygon or the mask of an annotation, or None if it has no pixel."""
    if isinstance(segmentation, list):
        shape = joined(segmentation, size, place) if segmentation else None
        return shape if not isinstance(shape, np.ndarray) or shape.any() else None
    if isinstance(segmentation['counts'], list):
        segmentation = coco_mask.frPyObjects(segmentation, *size[::-1])
    mask = coco_mask.decode(segmentation).astype(bool)
    return mask if mask.any() else None


def smallest_window(mask: np.ndarray) -> tuple[slice, slice]:
    """Return the rows and columns of the smallest window with all pixels of a mask."""
    rows, columns = (np.flatnonzero(mask.any(axis)).tolist() for axis in (1, 0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
