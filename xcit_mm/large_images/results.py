"""Hold the predictions for an image that does not fit into memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from ..predictions.drawing import Colour, draw_objects, draw_regions
from ..predictions.results import coco_annotations
from .geometry import Window, tiles, whole
from .geotiff import write_geojson, write_tiff
from .window_files import TILE, overview
from .workspace import Workspace

PICTURE_SIDE = 4096  # pixels of the longer side of a picture
MAX_TEXTS = 300  # number of objects in a picture above which texts would hide them


@dataclass(frozen=True)
class LargePrediction:
    """What is predicted for an image of H x W pixels.

    Attributes:
        size: (H, W).
        picture: The image, reduced to at most 4,096 pixels; RGB, uint8.
        classes: Names of the classes.
        palette: A colour for each class.
        georeference: ``crs`` and ``transform`` of a GeoTIFF, or {}.
        workspace: The store; ``workspace.remove()`` deletes its files.
    """

    size: tuple[int, int]
    picture: np.ndarray
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    georeference: Mapping[str, Any]
    workspace: Workspace


@dataclass(frozen=True)
class LargeSegmentation(LargePrediction):
    """The class of each pixel of an image; see also :class:`LargePrediction`.

    Attributes:
        labels: (H, W), indices into ``classes``; an array, or a memory map of a file in the store.
        scores: (H, W) uint8, the probability of each label (255 is 1); None unless requested.
    """

    labels: np.ndarray
    scores: np.ndarray | None

    def shares(self) -> dict[int, float]:
        """Return the share (0..1) of each class that occurs in the image, the largest first."""
        counts = np.zeros(len(self.classes), np.int64)
        for window in tiles(whole(self.size), TILE):
            counts += np.bincount(self.labels[tuple(window)].ravel(), minlength=len(counts))
        order = np.argsort(-counts, kind='stable')
        return {int(i): counts[i] / counts.sum() for i in order if counts[i]}

    def draw(self, opacity: float = 0.5) -> np.ndarray:
        """Draw the colours of the classes over the reduced image, with a legend below it; RGB."""
        shares = self.shares().items()
        legend = [(self.palette[i], f'{self.classes[i]} {share:.1%}') for i, share in shares]
        labels = overview(self.size, lambda window: self.labels[tuple(window)], PICTURE_SIDE)
        return draw_regions(self.picture, labels, self.palette, legend, opacity, None, None)

    def save(self, folder: Path, name: str) -> dict[str, str]:
        """Write the labels, and the scores if there are any, as GeoTIFF files into a folder.

        Returns:
            The paths of the files, relative to the folder.
        """
        written = {'labels': f'labels/{name}.tif'}
        palette = self.palette if self.labels.dtype == np.uint8 else ()
        write_tiff(_made(folder / written['labels']), self.labels, self.georeference, palette)
        if self.scores is not None:
            written['scores'] = f'scores/{name}.tif'
            write_tiff(_made(folder / written['scores']), self.scores, self.georeference)
        return written


@dataclass(frozen=True)
class LargeDetections(LargePrediction):
    """The n objects of an image, sorted by decreasing score; see also :class:`LargePrediction`.

    Attributes:
        boxes: (n, 4); left, top, right and bottom in pixels of the image.
        scores: (n,), 0..1.
        labels: (n,), indices into ``classes``.
        masks: For each object, a :class:`~.windows.Window` of the image and the mask (h, w) in
            that window, bool; None for a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[tuple[Window, np.ndarray]] | None

    def __len__(self) -> int:
        return len(self.scores)

    def draw(self) -> np.ndarray:
        """Draw boxes, masks, classes and scores over the reduced image; RGB."""
        factor = self.picture.shape[1] / self.size[1]
        topmost = None
        if self.masks is not None:
            topmost = np.zeros(self.picture.shape[:2], np.uint16)
            for i in reversed(range(min(len(self), np.iinfo(np.uint16).max))):
                self._paint(topmost, i, factor)
        texts = [
            f'{self.classes[i]} {s:.2f}' for i, s in zip(self.labels, self.scores, strict=True)
        ]
        colours = [self.palette[i] for i in self.labels]
        texts = texts if len(self) <= MAX_TEXTS else [''] * len(self)
        return draw_objects(self.picture, self.boxes * factor, topmost, colours, texts)

    def _paint(self, topmost: np.ndarray, i: int, factor: float) -> None:
        window, mask = self.masks[i]
        starts = [int(span.start * factor) for span in window]
        height, width = (max(1, round(n * factor)) for n in mask.shape)
        small = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA)
        target = topmost[starts[0] : starts[0] + height, starts[1] : starts[1] + width]
        target[small[: target.shape[0], : target.shape[1]] > 0] = i + 1

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Return the objects as annotations in the COCO format, without ``id``.

        Its masks count pixels in 32 bits. Objects of larger images have boxes only.
        """
        masks = self.masks
        if masks is not None:
            fits = math.prod(self.size) < 2**32
            masks = (run_lengths(*mask, self.size) for mask in masks) if fits else None
        return coco_annotations(self, image_id, masks)

    def save(self, folder: Path, name: str) -> dict[str, str]:
        """Write the objects as GeoJSON into a folder; see :meth:`LargeSegmentation.save`."""
        written = {'objects': f'objects/{name}.geojson'}
        write_geojson(_made(folder / written['objects']), self, self.georeference)
        return written


def run_lengths(window: Window, mask: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Return the COCO run lengths of a mask in a window of an image (H, W), column by column."""
    height, width = size
    columns = np.zeros((mask.shape[1], mask.shape[0] + 2), np.int8)
    columns[:, 1:-1] = mask.T
    column, row = np.nonzero(np.diff(columns, axis=1))  # the starts and ends of runs alternate
    places = (column + window.columns.start) * height + row + window.rows.start
    counts = np.diff(np.concatenate([[0], places, [height * width]]))
    rle = dict(size=[height, width], counts=counts.tolist())
    return coco_mask.frPyObjects(rle, height, width)


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
