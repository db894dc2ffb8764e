"""The usable images of a dataset, with their objects as annotations in COCO's format."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask
from rich.console import Console
from rich.progress import track
from shapely.geometry import Polygon

from ...base.errors import UserError
from ...base.files import open_regular
from ...base.finder import images_beside
from ..audit.annotations import require_encodable
from ..transforms.decode import size_of
from . import areas
from .base import IGNORED, ForeignDataset, LabelError, Problems, Shape, Size, named

TOLERANCE = 1.0  # pixels that a box may exceed the image: coordinates may start at 0 or 1
CUT = 'Objects that extend beyond the image, and are cut at its border'
REGIONS = f'Regions of {IGNORED}, which are neither objects nor background'
MAX_CUT = 0.1  # if a larger fraction of the objects is cut, the labels have another format
# The size of each image, and the class and the annotation of its objects.
Images = dict[Path, tuple[Size, list[tuple[str, dict[str, Any]]]]]


@dataclass
class Contents:
    """What a dataset contains, and what of it cannot be used.

    Attributes:
        images: The usable images.
        problems: What cannot be used.
        remarks: Numbers for the report.
    """

    images: Images = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    remarks: Counter[str] = field(default_factory=Counter)


def read_contents(dataset: ForeignDataset) -> Contents:
    """Read all labels of a dataset, and the size of each image."""
    dataset.leave_out('Images without a label or not listed', images_beside(dataset.labels))
    contents = Contents(problems=Problems(dataset.problems), remarks=dataset.remarks)
    images = dict.fromkeys(image for images in dataset.splits.values() for image in images)
    console = Console(stderr=True, quiet=not images)  # no empty bar
    without: list[Path] = []
    for image in track(images, 'Reading', console=console):
        file, objects, problems = dataset.labels[image], [], Problems()
        with problems.noted(file):
            labels, annotated = dataset.read_labels(image)
            size = image_size(image, annotated)
            if annotated not in (None, size):
                raise LabelError(f'{file}: size {annotated}, but {image} has {size} pixels')
        for place, label in () if problems else labels:
            with problems.noted(place):
                name, parts, is_difficult = dataset.parse_label(label, size, place)
                if dataset.classes and name not in (*dataset.classes, IGNORED):
                    raise ValueError(f'{name} is not a class in {dataset.classes_file.name}')
                fields, is_cut = _annotation_fields(parts, size, place)
                contents.remarks[CUT] += is_cut
                contents.remarks[REGIONS] += name == IGNORED
                objects.append((name, dict(fields, iscrowd=int(is_difficult))))
        contents.problems += problems
        # The whole image is left out: in training, a missing object would be background.
        if not problems:
            unique = {str(item): item for item in objects}
            contents.remarks['Duplicate objects dropped'] += len(objects) - len(unique)
            without += [] if file.exists() else [image]
            contents.images[image] = size, list(unique.values())
    if without:
        what = f'Images without a label file, such as {without[0]}, used as background'
        contents.remarks[what] = len(without)
    contents.remarks['Problems; the images are left out'] = len(contents.problems)
    return contents


def require_good(dataset: ForeignDataset, contents: Contents) -> None:
    """Refuse a dataset with problems, or with so many objects cut that the format may be wrong."""
    if contents.problems:
        raise UserError(
            f'{dataset.folder}: {len(contents.problems)} images or labels cannot be used, such as '
            f'{contents.problems[0]}; nothing was written: fix them, or leave out the images with '
            '--skip-bad'
        )
    num_cut = contents.remarks[CUT]
    num_objects = sum(len(objects) for _, objects in contents.images.values())
    if num_cut > MAX_CUT * num_objects:
        raise UserError(
            f'{dataset.folder}: {num_cut} of {num_objects} objects extend beyond their image, so '
            'the labels may have another format (YOLO: x and y of the center, width, height; VOC: '
            'two corners in pixels); nothing was written: correct them, or cut the objects with '
            '--skip-bad'
        )


def image_size(path: Path, annotated: Size | None = None) -> Size:
    """Return the size of an image after :func:`decode`, or raise a LabelError."""
    with named(path), open_regular(path) as file:
        return size_of(file, annotated, path)


def _annotation_fields(
    parts: Sequence[Shape], size: Size, place: str
) -> tuple[dict[str, Any], bool]:
    """Return the fields of an annotation, and whether the object is cut at the border."""
    outlines = [part for part in parts if not isinstance(part, np.ndarray)]
    cuts = [_cut(outline, size) for outline in outlines]
    any_is_cut = any(is_cut for _, is_cut in cuts)
    if len(parts) == len(cuts) == 1:
        return _outline_fields(cuts[0][0], size, place), any_is_cut
    return _mask_fields(areas.joined(parts, size, place)), any_is_cut


def _cut(outline: Sequence[float], size: Size) -> tuple[np.ndarray, bool]:
    """Return the corners (n, 2) within the image of a box or a polygon, and whether it is cut."""
    corners = np.reshape(outline, (-1, 2))
    if not np.isfinite(corners).all():
        raise ValueError('a coordinate is not a finite number')
    cut = corners.clip(0, size)
    for points, problem in ((corners, 'box of no size'), (cut, 'box outside the image')):
        extent = points[1] - points[0] if len(points) == 2 else np.ptp(points, axis=0)
        if not (extent > 0).all():
            raise ValueError(problem)
    return cut.round(4), bool(np.abs(corners - cut).max() > TOLERANCE)


def _outline_fields(cut: np.ndarray, size: Size, place: str) -> dict[str, Any]:
    x1, y1, width, height = (*cut.min(axis=0), *np.ptp(cut, axis=0).round(4))
    bbox = [float(value) for value in (x1, y1, width, height)]
    if len(cut) == 2:
        return dict(bbox=bbox, area=round(bbox[2] * bbox[3], 4))
    outline = Polygon(cut)
    # Cutting an outline at its crossings would take minutes if it has a thousand of them.
    area = (
        outline.area
        if outline.is_valid
        else float(areas.as_mask(cut.ravel().tolist(), size, place).sum())
    )
    if area <= 0:
        raise ValueError('the outline encloses no area')
    return dict(bbox=bbox, area=round(area, 4), segmentation=[cut.ravel().tolist()])


def _mask_fields(mask: np.ndarray) -> dict[str, Any]:
    require_encodable('the image', mask.shape)
    if not mask.any():
        raise ValueError('the mask has no pixel')
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    bbox, area = coco_mask.toBbox(rle).tolist(), float(coco_mask.area(rle))
    return dict(bbox=bbox, area=area, segmentation={**rle, 'counts': rle['counts'].decode()})
