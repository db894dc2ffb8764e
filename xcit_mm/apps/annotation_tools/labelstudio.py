"""Objects as tasks and predictions of Label Studio."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ...data.importers import brush_rle
from ...data.importers.areas import as_mask
from ...data.importers.base import Shape, Size
from .objects import BOXES, MASKS, POLYGONS, SHAPE_KINDS, AnnotatedImage, AnnotatedObject

# The tag of a labeling configuration for each kind of shapes.
TAGS = {MASKS: 'BrushLabels', POLYGONS: 'PolygonLabels', BOXES: 'RectangleLabels'}
TASKS, CONFIG = 'tasks.json', 'labeling_config.xml'
LOCAL_FILES = '/data/local-files/?d='  # the path below Label Studio's folder of local files follows


class Control(NamedTuple):
    """A tag of a labeling configuration that people draw shapes with."""

    kind: str  # of SHAPE_KINDS
    name: str
    to_name: str  # of the image
    labels: frozenset[str]


def files(
    classes: Sequence[str],
    images: Iterable[AnnotatedImage],
    kind: str,
    image_url: str = LOCAL_FILES,
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files for Label Studio: tasks, and their configuration.

    The address of an image is ``image_url`` followed by its name.
    """
    labels = frozenset(classes)
    kinds = SHAPE_KINDS[: SHAPE_KINDS.index(kind) + 1]
    controls = [Control(kind, TAGS[kind], 'image', labels) for kind in kinds]
    tasks = []
    for image in images:
        prediction = described(image.objects, controls, 'xcit_mm')
        tasks.append(dict(data=dict(image=image_url + quote(image.name)), predictions=[prediction]))
    yield TASKS, json.dumps(tasks).encode()
    used = {region['from_name'] for task in tasks for region in task['predictions'][0]['result']}
    root = Element('View')
    SubElement(root, 'Image', dict(name='image', value='$image'))
    for control in controls:
        if control.name in used or control.kind == kind:
            tag = SubElement(root, TAGS[control.kind], dict(name=control.name, toName='image'))
            for name in classes:
                SubElement(tag, 'Label', dict(value=name))
    ElementTree.indent(root)
    yield CONFIG, ElementTree.tostring(root)


def described(
    objects: Sequence[AnnotatedObject], controls: Sequence[Control], version: str
) -> dict[str, Any]:
    """Return a prediction for a task, whose score is the mean of the scores of its objects.

    An object has regions for the control that shows the most of it. An object whose class no
    control offers has none, nor has a box that only controls for polygons or masks offer.
    """
    result, scores = [], []
    for number, item in enumerate(objects, 1):
        parts = _regions(item, controls)
        result += [dict(part, id=f'{number}-{i}') for i, part in enumerate(parts, 1)]
        scores += [item.score] if parts and item.score is not None else []
    score = dict(score=float(np.mean(scores))) if scores else {}
    return dict(model_version=version, result=result, **score)


def _regions(item: AnnotatedObject, controls: Sequence[Control]) -> list[dict[str, Any]]:
    suitable = {BOXES: [], POLYGONS: [POLYGONS, MASKS], MASKS: [MASKS, POLYGONS]}[item.kind]
    offered = {c.kind: c for c in reversed(controls) if item.name in c.labels}
    control = next((offered[kind] for kind in (*suitable, BOXES) if kind in offered), None)
    if control is None:
        return []
    shapes = item.shapes(control.kind)
    if control.kind == MASKS:
        shapes = [as_mask(shape, item.size, item.name) for shape in shapes]
    return [_region(control, item, shape) for shape in shapes]


def _region(control: Control, item: AnnotatedObject, shape: Shape) -> dict[str, Any]:
    kind = TAGS[control.kind].lower()
    width, height = item.size
    score = {} if item.score is None else dict(score=item.score)
    return dict(
        type=kind,
        from_name=control.name,
        to_name=control.to_name,
        original_width=width,
        original_height=height,
        image_rotation=0,
        value={**_value(shape, item.size), kind: [item.name]},
        **score,
    )


def _value(shape: Shape, size: Size) -> dict[str, Any]:
    """Return a shape in percent of the image."""
    if isinstance(shape, np.ndarray):
        return dict(format='rle', rle=brush_rle.encode(shape))
    points = (np.reshape(shape, (-1, 2)) / size * 100).tolist()
    if len(points) > 2:
        return dict(points=points, closed=True)
    (x, y), (right, bottom) = points
    return dict(x=x, y=y, width=right - x, height=bottom - y, rotation=0)
