"""Predictions for an image that does not fit into memory."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ...base.geometry import Window, tiles, whole
from ...data.audit.annotations import MAX_PIXELS
from ...large.files.image_source import TILE
from ...large.files.overview import overview
from ...large.files.pixel_sizes import PixelSize, are_areas_in_meters, area_at_center, pixel_areas
from ...large.maps.no_label import no_label
from ...large.tokens.workspace import Workspace
from ..results import Detections, Heights, Segmentation
from ..results.heights import Limits, limits_of
from ..results.run_lengths import run_lengths_in
from ..results.short_texts import size_text
from ..results.supervision_detections import compact_masks
from ..write.geojson import write_geojson
from ..write.geopackage import write_geopackage
from ..write.geotiff import AVERAGE, write_tiff
from ..write.label_polygons import label_polygons, without_small_regions
from ..write.vector_layers import POLYGON, Layer, object_layer
from ..write.write_zarr import write_zarr
from .output_options import DEFAULT_OUTPUT, GEOJSON, GEOPACKAGE, OutputOptions

SCALE_SIDE = 512  # pixels; the scale of the map counts as constant in windows of this side
PICTURE_SIDE = 4096  # pixels of the longer side of a picture
VECTOR_WRITERS = {GEOJSON: write_geojson, GEOPACKAGE: write_geopackage}
MAX_TEXTS = 300  # number of objects in a picture above which texts would hide them


@dataclass(frozen=True, kw_only=True, repr=False)
class LargePrediction:
    """Attributes of predictions for an image of H x W pixels.

    ``image`` is a picture of it, reduced to at most 4,096 pixels per side.

    Attributes:
        size: (H, W).
        georeference: ``crs`` and ``transform`` of the pixels of the prediction; either may be
            missing. Without ``crs``, a ``transform`` leads to pixels of the full image,
            counted from the bounds of a slide.
        workspace: The store; ``workspace.remove()`` deletes its files.
        window: The window of the full image that was predicted, which the picture shows. Default:
            the whole image.
    """

    size: tuple[int, int]
    georeference: Mapping[str, Any]
    workspace: Workspace
    window: Window | None = None

    @property
    def _size(self) -> tuple[int, int]:
        return self.size


@dataclass(frozen=True, kw_only=True, repr=False)
class LargeSegmentation(LargePrediction, Segmentation):
    """The class of each pixel of an image; see also :class:`LargePrediction`.

    Attributes:
        labels: (H, W), indices into ``classes``, uint8, or int16 for more than 255 classes; an
            array, or a memory map of a file in the store. Pixels without data have the label
            :func:`.no_label`.
        scores: (H, W) uint8, the probability of each label (255 is 1); None unless requested.
        probabilities: (K, H, W), the probabilities of the K classes, uint8 (255 is 1) or float16;
            None unless requested.
        pixel_size: The size of a pixel, or None if it is not known.
    """

    scores: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    pixel_size: PixelSize | None = None

    def counts(self) -> list[dict[str, float]]:
        """Return the pixels, the percentage and, if it is known, the area of each class."""
        counts = super().counts()
        if are_areas_in_meters(self.georeference, self.size):
            return [c | {'square meters': a} for c, a in zip(counts, self._areas(), strict=True)]
        if self.pixel_size is None:
            return counts
        height, width, _ = self.pixel_size
        return [c | {'square micrometers': c['pixels'] * height * width} for c in counts]

    def __repr__(self) -> str:  # reading all labels would take seconds
        return f'{type(self).__name__}({size_text(self.size)}, {len(self.classes)} classes)'

    def _counts(self) -> np.ndarray:
        return sum(counts for _, counts in self._counted(TILE))

    def _areas(self) -> list[float]:
        """Return the area of each class on the ground."""
        windows, counts = zip(*self._counted((SCALE_SIDE, SCALE_SIDE)), strict=True)
        centers = [[(s.start + s.stop) / 2 for s in window] for window in windows]
        y, x = np.array(centers).T
        return (pixel_areas(self.georeference, x, y) @ np.array(counts)).tolist()

    def _counted(self, size: tuple[int, int]) -> Iterator[tuple[Window, np.ndarray]]:
        """Yield windows of a size, and the number of their pixels of each class (K,)."""
        for window in tiles(whole(self.size), size):
            labels = self.labels[tuple(window)]
            labels = labels[labels != self._no_label]
            yield window, np.bincount(labels, minlength=len(self.classes))

    def _drawn_labels(self) -> np.ndarray:
        return overview(self.size, lambda window: self.labels[tuple(window)], PICTURE_SIDE)

    def _outlines(self) -> tuple[np.ndarray, np.ndarray]:
        parts = [(p.outlines, p.labels) for p in label_polygons(self.labels, self._no_label)]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    @property
    def _no_label(self) -> int:
        return no_label(self.labels.dtype)

    def save(
        self, folder: Path, name: str, options: OutputOptions = DEFAULT_OUTPUT
    ) -> dict[str, str]:
        """Write the prediction into a folder.

        ``labels/NAME.tif`` is a GeoTIFF of the labels, with :func:`.no_label` as its no-data value
        and a table of the classes in ``NAME.tif.aux.xml``. ``scores/NAME.tif`` and
        ``probabilities/NAME.tif`` (float16: ``NAME.zarr``) are written if the prediction has them,
        with a mask of the pixels with data. Probabilities have a band for each class, and are never
        cloud-optimized. ``polygons/NAME.geojson`` (or ``.gpkg``) is written if the options say so.
        Each file is complete or absent.

        Returns:
            The paths of the files, relative to the folder.

        Raises:
            UserError: If a file cannot be written.
        """
        written = {'labels': f'labels/{name}.tif'}
        path = _made(folder / written['labels'])
        about = dict(georeference=self.georeference, cog=options.cog)
        of_classes = dict(classes=self.classes, palette=self.palette, nodata=self._no_label)
        write_tiff(path, self.labels, **of_classes, **about)
        has_gaps = any(
            (self.labels[tuple(window)] == self._no_label).any()
            for window in tiles(whole(self.size), TILE)
        )
        about |= dict(valid=self._valid if has_gaps else None, levels_by=AVERAGE)
        if self.scores is not None:
            written['scores'] = f'scores/{name}.tif'
            write_tiff(_made(folder / written['scores']), self.scores, **about)
        values = self.probabilities
        if values is not None:
            suffix = 'tif' if values.dtype == np.uint8 else 'zarr'
            written['probabilities'] = f'probabilities/{name}.{suffix}'
            path = _made(folder / written['probabilities'])
            if suffix == 'tif':
                # In a COG, which is for pictures, each block would hold the pixels of all classes.
                write_tiff(path, values, names=self.classes, **about | dict(cog=False))
            else:
                write_zarr(path, values, self.classes, self.georeference)
        if options.polygons:
            written['polygons'] = f'polygons/{name}.{options.vectors}'
            self._write_polygons(_made(folder / written['polygons']), options)
        return written

    def _valid(self, window: Window) -> np.ndarray:
        return self.labels[tuple(window)] != self._no_label

    def _write_polygons(self, path: Path, options: OutputOptions) -> None:
        smallest = (options.smallest_area or 0) / area_at_center(self.georeference, self.size)
        labels = nullcontext(self.labels)
        if smallest > 1:
            pixels = math.ceil(smallest)
            labels = without_small_regions(self.labels, pixels, self._no_label, path.parent)
        with labels as labels:
            self._write_layer(path, labels, options)
            del labels  # Windows removes no file that is mapped into memory

    def _write_layer(self, path: Path, labels: np.ndarray, options: OutputOptions) -> None:
        polygons = label_polygons(labels, self._no_label, options.simplify)
        classes = self.classes, self.palette
        layer = Layer('polygons', POLYGON, *classes, self.georeference, polygons)
        VECTOR_WRITERS[options.vectors](path, layer)


@dataclass(frozen=True, kw_only=True, repr=False)
class LargeHeights(LargePrediction, Heights):
    """The height of each pixel of an image; see also :class:`LargePrediction`.

    Attributes:
        values: (H, W) float32; an array, or a memory map of a file in the store.
    """

    def __repr__(self) -> str:  # reading all heights would take seconds
        return f'{type(self).__name__}({size_text(self.size)})'

    @cached_property
    def limits(self) -> Limits:
        """The lowest and the highest height; NaN if no pixel has one."""
        windows = tiles(whole(self.size), TILE)
        return limits_of(*(np.array(limits_of(self.values[tuple(w)])) for w in windows))

    def _drawn_values(self) -> np.ndarray:
        return overview(self.size, lambda window: self.values[tuple(window)], PICTURE_SIDE)

    def save(
        self, folder: Path, name: str, options: OutputOptions = DEFAULT_OUTPUT
    ) -> dict[str, str]:
        """Write the heights as a GeoTIFF file; see :meth:`LargeSegmentation.save`."""
        written = {'heights': f'heights/{name}.tif'}
        about = dict(nodata=np.nan, levels_by=AVERAGE, cog=options.cog)
        write_tiff(_made(folder / written['heights']), self.values, self.georeference, **about)
        return written


@dataclass(frozen=True, kw_only=True, repr=False)
class LargeDetections(LargePrediction, Detections):
    """The n objects of an image, sorted by decreasing score; see also :class:`LargePrediction`.

    Attributes:
        boxes: (n, 4); left, top, right and bottom in pixels of the image.
        masks: For each object, a :class:`~.geometry.Window` of the image and the mask (h, w) in
            that window, bool; None for a model without masks.
    """

    masks: list[tuple[Window, np.ndarray]] | None

    def save(
        self, folder: Path, name: str, options: OutputOptions = DEFAULT_OUTPUT
    ) -> dict[str, str]:
        """Write the objects to ``objects/NAME.geojson`` (or ``.gpkg``) in a folder.

        See :func:`.object_layer` and :meth:`LargeSegmentation.save`.
        """
        written = {'objects': f'objects/{name}.{options.vectors}'}
        path = _made(folder / written['objects'])
        VECTOR_WRITERS[options.vectors](path, object_layer(self, self.georeference))
        return written

    @property
    def _shown(self) -> Window:
        return self.window or whole(self.size)

    @property
    def _reduction(self) -> float:
        return self.image.shape[1] / self._shown.size[1]

    def _drawn_boxes(self) -> np.ndarray:
        corner = self._shown.columns.start, self._shown.rows.start
        return (self.boxes - np.tile(corner, 2)) * self._reduction

    def _topmost_masks(self) -> np.ndarray:
        topmost = np.zeros(self.image.shape[:2], np.uint16)
        for i in reversed(range(min(len(self), np.iinfo(np.uint16).max))):
            window, mask = self.masks[i]
            y, x = (int(s.start * self._reduction) for s in window.within(self._shown))
            height, width = (max(1, round(n * self._reduction)) for n in mask.shape)
            mask = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_AREA)
            target = topmost[y : y + height, x : x + width]
            target[mask[: target.shape[0], : target.shape[1]] > 0] = i + 1
        return topmost

    def _cut_out_masks(self) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
        for window, mask in self.masks:
            yield (window.columns.start, window.rows.start), mask

    def _masks_for_supervision(self) -> Any:
        if not self.masks:
            return None
        return compact_masks(self._cut_out_masks(), self.size)

    def _texts(self) -> list[str]:
        return super()._texts() if len(self) <= MAX_TEXTS else [''] * len(self)

    def _run_lengths(self, i: int) -> dict[str, Any] | None:
        if self.masks is None or math.prod(self.size) >= MAX_PIXELS:
            return None
        return run_lengths_in(*self.masks[i], self.size)


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
