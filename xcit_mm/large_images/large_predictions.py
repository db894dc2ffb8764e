"""Predictions for an image that does not fit into memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from ..datasets.annotations import MAX_PIXELS
from ..predictions import Detections, Heights, Segmentation
from ..predictions.heights import Limits, limits_of
from ..scenes.geometry import Window, tiles, whole
from ..scenes.geotiff import write_geojson, write_tiff
from ..scenes.image_source import TILE
from ..scenes.overview import overview
from .workspace import Workspace

PICTURE_SIDE = 4096  # pixels of the longer side of a picture
MAX_TEXTS = 300  # number of objects in a picture above which texts would hide them


@dataclass(frozen=True, kw_only=True)
class LargePrediction:
    """Attributes of predictions for an image of H x W pixels; ``image`` is a reduced picture.

    Attributes:
        size: (H, W).
        georeference: ``crs`` and ``transform`` of a GeoTIFF, or {}.
        workspace: The store; ``workspace.remove()`` deletes its files.
    """

    size: tuple[int, int]
    georeference: Mapping[str, Any]
    workspace: Workspace

    @property
    def picture(self) -> np.ndarray:
        """The image, reduced to at most 4,096 pixels per side; RGB, uint8."""
        return self.image


@dataclass(frozen=True, kw_only=True)
class LargeSegmentation(LargePrediction, Segmentation):
    """The class of each pixel of an image; see also :class:`LargePrediction`.

    Attributes:
        labels: (H, W), indices into ``classes``; an array, or a memory map of a file in the store.
        scores: (H, W) uint8, the probability of each label (255 is 1); None unless requested.
    """

    scores: np.ndarray | None

    def _counts(self) -> np.ndarray:
        counts = np.zeros(len(self.classes), np.int64)
        for window in tiles(whole(self.size), TILE):
            counts += np.bincount(self.labels[tuple(window)].ravel(), minlength=len(counts))
        return counts

    def _drawn_labels(self) -> np.ndarray:
        return overview(self.size, lambda window: self.labels[tuple(window)], PICTURE_SIDE)

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


@dataclass(frozen=True, kw_only=True)
class LargeHeights(LargePrediction, Heights):
    """The height of each pixel of an image; see also :class:`LargePrediction`.

    Attributes:
        values: (H, W) float32; an array, or a memory map of a file in the store.
    """

    @cached_property
    def limits(self) -> Limits:
        """The lowest and the highest height; NaN if no pixel has one."""
        windows = tiles(whole(self.size), TILE)
        return limits_of(*(np.array(limits_of(self.values[tuple(w)])) for w in windows))

    def _drawn_values(self) -> np.ndarray:
        return overview(self.size, lambda window: self.values[tuple(window)], PICTURE_SIDE)

    def save(self, folder: Path, name: str) -> dict[str, str]:
        """Write the heights as a GeoTIFF file; see :meth:`LargeSegmentation.save`."""
        written = {'heights': f'heights/{name}.tif'}
        write_tiff(_made(folder / written['heights']), self.values, self.georeference)
        return written


@dataclass(frozen=True, kw_only=True)
class LargeDetections(LargePrediction, Detections):
    """The n objects of an image, sorted by decreasing score; see also :class:`LargePrediction`.

    Attributes:
        boxes: (n, 4); left, top, right and bottom in pixels of the image.
        masks: For each object, a :class:`~.geometry.Window` of the image and the mask (h, w) in
            that window, bool; None for a model without masks.
    """

    masks: list[tuple[Window, np.ndarray]] | None

    def save(self, folder: Path, name: str) -> dict[str, str]:
        """Write the objects as GeoJSON into a folder; see :meth:`LargeSegmentation.save`."""
        written = {'objects': f'objects/{name}.geojson'}
        write_geojson(_made(folder / written['objects']), self, self.georeference)
        return written

    @property
    def _reduction(self) -> float:
        return self.image.shape[1] / self.size[1]

    def _topmost_masks(self) -> np.ndarray:
        topmost = np.zeros(self.image.shape[:2], np.uint16)
        for i in reversed(range(min(len(self), np.iinfo(np.uint16).max))):
            window, mask = self.masks[i]
            y, x = (int(span.start * self._reduction) for span in window)
            height, width = (max(1, round(n * self._reduction)) for n in mask.shape)
            mask = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA)
            target = topmost[y : y + height, x : x + width]
            target[mask[: target.shape[0], : target.shape[1]] > 0] = i + 1
        return topmost

    def _texts(self) -> list[str]:
        return super()._texts() if len(self) <= MAX_TEXTS else [''] * len(self)

    def _run_lengths(self, i: int) -> dict[str, Any] | None:
        if self.masks is None or math.prod(self.size) >= MAX_PIXELS:
            return None
        return run_lengths_in(*self.masks[i], self.size)


def run_lengths_in(window: Window, mask: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
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
