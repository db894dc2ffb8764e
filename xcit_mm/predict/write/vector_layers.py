"""Layers of vector features that are written: objects and regions of an image on a map."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from ...large.files.pixel_sizes import pixel_areas
from ..results import Detections

TOGETHER = 4096  # features that are held at a time
POLYGON, MULTIPOLYGON = 'Polygon', 'MultiPolygon'


@dataclass(frozen=True)
class LayerPart:
    """Some features of a layer.

    Attributes:
        outlines: (n,) polygons of shapely, in pixels of the image.
        labels: (n,), indices into the classes.
        areas: (n,), in pixels.
        scores: (n,), 0..1; None for features without scores.
    """

    outlines: np.ndarray
    labels: np.ndarray
    areas: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class Layer:
    """A layer of features, which are computed when they are written.

    Attributes:
        name: The name of the layer in a file.
        kind: The type of all geometries, ``POLYGON`` or ``MULTIPOLYGON``.
        classes: Names of the classes.
        palette: A color for each class.
        georeference: ``crs`` and ``transform``; either may be missing.
        parts: The features, in parts of a few thousand.
    """

    name: str
    kind: str
    classes: Sequence[str]
    palette: Sequence[tuple[int, int, int]]
    georeference: Mapping[str, Any]
    parts: Iterable[LayerPart]

    def on_map(self, outlines: np.ndarray) -> np.ndarray:
        """Return polygons in map coordinates, with exterior rings counterclockwise (RFC 7946)."""
        transform = self.georeference.get('transform')
        if transform is not None:
            a, b, c, d, e, f, *_ = transform
            outlines = shapely.transform(
                outlines, lambda x, y: (a * x + b * y + c, d * x + e * y + f), interleaved=False
            )
        return shapely.orient_polygons(outlines)

    def areas(self, part: LayerPart) -> np.ndarray:
        """Return the areas (n,) of features, each with the scale of the map at its center."""
        x, y = shapely.get_coordinates(shapely.centroid(part.outlines)).T
        return (part.areas * pixel_areas(self.georeference, x, y)).round(4)


def object_layer(objects: Detections, georeference: Mapping[str, Any]) -> Layer:
    """Return the layer of the objects of a large image.

    Objects with masks are outlined by their pixels, and others, also those whose mask is empty, by
    their boxes.
    """
    kind = POLYGON if objects.masks is None else MULTIPOLYGON
    classes = objects.classes, objects.palette
    return Layer('objects', kind, *classes, georeference, _parts(objects))


def _parts(objects: Detections) -> Iterator[LayerPart]:
    for start in range(0, max(1, len(objects)), TOGETHER):
        part = objects[start : start + TOGETHER]
        outlines = part.to_polygons()
        boxes = shapely.multipolygons(shapely.box(*part.boxes.astype(float).T)[:, None])
        outlines = np.where(shapely.is_empty(outlines), boxes, outlines)
        yield LayerPart(outlines, part.labels, shapely.area(outlines), part.scores)
