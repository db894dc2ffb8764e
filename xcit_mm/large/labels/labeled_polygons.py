"""Polygons with classes in the pixels of an image: read, repaired, and cut by windows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.geometry import MultiPolygon, Polygon, box

from ...base.errors import UserError, did_you_mean, one_line
from ...base.geometry import Window
from ..files.image_source import ImageSource
from .read_features import POLYGONS, in_pixels, not_in_image, read_features

# A polygon that crosses itself is repaired if this share of its area changes at most.
MAX_CHANGE = 0.01


@dataclass(frozen=True)
class LabeledPolygons:
    """The n polygons of an image, clipped to it.

    Attributes:
        shapes: (n,) valid Polygons and MultiPolygons of shapely, in pixels.
        labels: (n,) int64, the numbers of their classes.
        are_ignored: (n,) bool; areas that are neither targets nor background.
    """

    shapes: np.ndarray
    labels: np.ndarray
    are_ignored: np.ndarray

    @classmethod
    def within(
        cls, size: tuple[int, int], polygons: Sequence[tuple[Any, int, bool]]
    ) -> 'LabeledPolygons':
        """Clip polygons, each with its label and whether it is ignored, to an image (H, W)."""
        shapes = np.empty(len(polygons), object)
        shapes[:] = [shape for shape, _, _ in polygons]
        labels = np.array([label for _, label, _ in polygons], np.int64)
        are_ignored = np.array([is_ignored for _, _, is_ignored in polygons], bool)
        shapes = _within_box(shapes, box(0, 0, size[1], size[0]))
        is_inside = shapely.area(shapes) > 0
        return cls(shapes[is_inside], labels[is_inside], are_ignored[is_inside])

    @cached_property
    def tree(self) -> shapely.STRtree:
        return shapely.STRtree(self.shapes)

    def touching(self, window: Window) -> np.ndarray:
        """Return the numbers of the polygons that touch a window, in ascending order."""
        return np.sort(self.tree.query(_box(window), predicate='intersects'))

    def objects(self, window: Window, min_visible: float) -> list[dict[str, Any]]:
        """Return the objects in a window, as mmdet's datasets list them as ``instances``.

        Each object is the part of a polygon that is inside. If this part is less than a share
        ``min_visible`` of the polygon's area, the object is ignored.
        """
        numbers = self.touching(window)
        parts = _within_box(self.shapes[numbers], _box(window))
        shares = shapely.area(parts) / shapely.area(self.shapes[numbers])
        corner = window.columns.start, window.rows.start
        parts = shapely.transform(parts, lambda points: points - corner)
        objects = []
        for number, part, share in zip(numbers, parts, shares, strict=True):
            if share == 0:  # it only touches the border
                continue
            is_ignored = bool(self.are_ignored[number]) or share < min_visible
            outlines = [shapely.get_coordinates(p.exterior)[:-1] for p in without_holes(part)]
            objects.append(
                dict(
                    bbox=list(part.bounds),
                    bbox_label=int(self.labels[number]),
                    ignore_flag=int(is_ignored),
                    mask=[outline.ravel().tolist() for outline in outlines],
                )
            )
        return objects


def read_polygons(
    path: Path, image: ImageSource, classes: Sequence[str], class_property: str
) -> LabeledPolygons:
    """Read the polygons of an image from a GeoJSON file or a GeoPackage.

    If the image has a georeference, the coordinates are map coordinates, and are converted if the
    file names another reference system. Otherwise, they are pixels.

    Raises:
        UserError: If the file cannot be read, if a feature has an unknown class or crosses itself
            so that its area is ambiguous, or if all are outside the image.
    """
    in_file, polygons = read_features(path), []
    features = in_pixels(in_file, image)
    for number, (shape, properties) in enumerate(
        zip(features.geometries, features.properties, strict=True), 1
    ):
        place = f'{path}: feature {number}'
        label = label_of(properties, class_property, classes, place)
        polygons.append((repaired(shape, place), label, False))
    labeled = LabeledPolygons.within(image.shape[:2], polygons)
    if polygons and not len(labeled.shapes):
        raise not_in_image(image, in_file)
    return labeled


def label_of(
    properties: Mapping[str, Any], class_property: str, classes: Sequence[str], place: str
) -> int:
    """Return the number of the class that a property of a feature names.

    ``place`` starts the sentence about a feature without the property, or with another class.
    """
    if class_property not in properties:
        names = ', '.join(map(str, properties)) or 'none'
        raise UserError(
            f'{place} has no property {class_property!r} with the name of its class: set '
            f'class_property of the dataset to one of its properties ({names})'
        )
    name = properties[class_property]
    if name not in classes:
        raise UserError(
            f'{place} has the class {one_line(repr(name))}, but the config has '
            f'{", ".join(classes)}: correct it, or set metainfo=dict(classes=...)'
            f'{did_you_mean(str(name), classes)}'
        )
    return classes.index(name)


def repaired(shape: Any, place: str) -> Any:
    """Return a valid Polygon or MultiPolygon that covers the same area.

    Raises:
        UserError: If its repair changes its area. ``place`` starts the sentence.
    """
    if shape.is_valid:
        return shape
    whole = _polygonal(shapely.make_valid(shape))
    if abs(whole.area - shape.area) > MAX_CHANGE * max(whole.area, shape.area):
        raise UserError(
            f'{place} is not a valid polygon ({one_line(shapely.is_valid_reason(shape))}), and '
            f'its repair changes its area from {shape.area:.6g} to {whole.area:.6g} pixels: '
            'correct or remove it'
        )
    return whole


def without_holes(shape: Any) -> Iterator[Polygon]:
    """Cut a polygon through each hole, because polygons in COCO's format have no holes."""
    if not isinstance(shape, Polygon):  # also parts that are points and lines
        for part in getattr(shape, 'geoms', ()):
            yield from without_holes(part)
    elif not shape.interiors:
        yield shape
    elif not shape.is_valid:  # it cannot be cut
        yield from without_holes(shapely.make_valid(shape))
    else:
        left, top, right, bottom = shape.bounds
        # Through the middle hole, so that each half has at most half of the others.
        centers = sorted((hole.bounds[0] + hole.bounds[2]) / 2 for hole in shape.interiors)
        middle = centers[len(centers) // 2]
        for half in (box(left, top, middle, bottom), box(middle, top, right, bottom)):
            yield from without_holes(shape & half)


def _box(window: Window) -> Polygon:
    rows, columns = window
    return box(columns.start, rows.start, columns.stop, rows.stop)


def _within_box(shapes: np.ndarray, outer: Polygon) -> np.ndarray:
    """Return the polygonal parts of shapes inside a box."""
    are_inside = shapely.covered_by(shapes, outer)
    cut = shapes.copy()
    for number in np.flatnonzero(~are_inside):
        cut[number] = _polygonal(shapes[number] & outer)
    return cut


def _polygonal(shape: Any) -> Any:
    """Drop the points and lines that a cut or a repair may leave."""
    if shape.geom_type in POLYGONS:
        return shape
    parts = [part for part in shapely.get_parts(shape) if part.geom_type in POLYGONS]
    return shapely.union_all(parts) if parts else MultiPolygon()
