"""Prediction of an image slice by slice, with a model that gets one slice at a time.

mmseg's mode 'slide' and SAHI (arXiv 2202.06934) do the same. It works with any model, and suits
models whose training images were much smaller than the image.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mmengine.dataset import Compose
from torch import nn

from ...base.errors import UserError
from ...base.geometry import Window, shifted
from ...base.progress import Progress
from ...base.threads import prefetch
from ...data.transforms.multiband import LoadMultiband
from ...large.files.normalized_image import NormalizedImage
from ...large.maps.objects import Objects
from ...large.maps.segment import without_data
from ...large.tokens.token_files import TokenFile
from ...large.tokens.workspace import Workspace
from ..results import Detections, Heights, Segmentation
from .joined_objects import join

# Of two objects of a class in two slices, the one with the lower score is dropped if they share
# more than this part of the smaller one, as in SAHI. A slice has only a part of a cut object.
MAX_SHARED = 0.5
MAX_SLICES = 2**21  # their list takes 1 GiB
SLICES = 'rows of slices'  # the stage of a workspace
# A slice, its middle, its prediction (None without data), and which of its pixels have data, (h, w)
# bool; None if all of them have.
Predicted = tuple[Window, Window, Detections | Heights | Segmentation | None, np.ndarray | None]
NO_OBJECTS = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int))


class Predictor(Protocol):
    """What predictions need of a model, such as :class:`xcit_mm.predict.Model`."""

    task: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    module: nn.Module
    pipeline: Compose
    bands: LoadMultiband | None
    dtype: torch.dtype  # of slices
    streamed_dtype: torch.dtype  # of an image that is predicted as a whole

    def read(self, image: str | Path) -> np.ndarray: ...
    def prepare(self, image: np.ndarray) -> Any: ...
    def predict_batch(
        self, images: Sequence[Any]
    ) -> Sequence[Detections | Heights | Segmentation]: ...
    def at_own_size(self) -> 'Predictor': ...


def slices_of(size: tuple[int, int], side: int, overlap: int) -> list[tuple[Window, Window]]:
    """Return the slices of an image, and the middle of each, where no other slice has more context.

    Neighboring slices share ``overlap`` pixels, fewer than their ``side``; the last two may share
    more.

    Raises:
        UserError: If there are more than ``MAX_SLICES``.
    """
    count = math.prod(max(1, -(-(n - overlap) // (side - overlap))) for n in size)
    if count > MAX_SLICES:
        raise UserError(
            f'{size[1]}x{size[0]} pixels have {count} slices of {side} pixels, but at most '
            f'{MAX_SLICES} can be predicted: use larger slices (--sliced), a smaller --overlap, or '
            'name a part with --region'
        )
    axes = [_spans(n, side, overlap) for n in size]
    rows, columns = (list(zip(spans, _middles(spans), strict=True)) for spans in axes)
    return [(Window(r, c), Window(mr, mc)) for r, mr in rows for c, mc in columns]


def _spans(n: int, side: int, overlap: int) -> list[slice]:
    starts = list(range(0, max(1, n - overlap), side - overlap))
    starts = sorted({max(0, min(start, n - side)) for start in starts})
    return [slice(start, min(n, start + side)) for start in starts]


def _middles(spans: list[slice]) -> list[slice]:
    """Cut each pair of neighboring spans in the middle of the part that they share."""
    cuts = [(a.stop + b.start) // 2 for a, b in pairwise(spans)]
    return [
        slice(start, stop) for start, stop in zip([0, *cuts], [*cuts, spans[-1].stop], strict=True)
    ]


@dataclass(frozen=True)
class Slices:
    """The slices of an image, which a model predicts one by one.

    Slices without data are not predicted. A run that was killed continues after the last finished
    row of slices.

    Attributes:
        model: A model that does not resize the pixels of a slice.
        pixels: The image.
        windows: The slices and their middles, of :func:`slices_of`.
        batch_size: How many slices go through the model together.
        workspace: The place of what is finished.
        progress: The display of the progress.
    """

    model: Predictor
    pixels: NormalizedImage
    windows: list[tuple[Window, Window]]
    batch_size: int
    workspace: Workspace
    progress: Progress

    def label(self, name: str, dtype: torch.dtype) -> TokenFile:
        """Label each slice by itself; the middle part of a slice determines the labels there.

        Returns a store with the labels, or the heights, (H, W, 1).
        """
        height, width = self.pixels.size
        labels = self.workspace.open(
            name, slice(0, height), (width, 1), dtype, self.workspace.finished[SLICES] > 0
        )
        with closing(self._rows()) as rows:
            for number, row in rows:
                for window, middle, prediction, valid in row:
                    values = torch.full(middle.size, without_data(name, dtype), dtype=dtype)
                    if prediction is not None:
                        is_map = isinstance(prediction, Heights)
                        part = prediction.values if is_map else prediction.labels
                        inner = tuple(middle.within(window))
                        has_data = torch.tensor(True if valid is None else valid[inner])
                        part = torch.from_numpy(np.ascontiguousarray(part[inner]))
                        values = part.where(has_data, values)
                    labels.write(middle, values[..., None])
                self.workspace.finish(SLICES, number, labels)
        return labels

    def detect(self, score_thr: float) -> Objects:
        """Detect the objects of each slice by itself.

        Objects that the slices cut are joined (:func:`.join`), and duplicates are dropped. Objects
        hold only pixels with data; those whose center has none are left out.
        """
        finished = range(1, self.workspace.finished[SLICES] + 1)
        of_rows = [_unpacked(self.workspace.load(f'objects_{number}')) for number in finished]
        with closing(self._rows()) as rows:
            for number, row in rows:
                parts, corners = [NO_OBJECTS], [np.zeros((0, 2), int)]
                for window, _, prediction, valid in row:
                    if prediction is None:
                        continue
                    parts.append(_moved(prediction.above(score_thr), window, valid))
                    corner = window.columns.start, window.rows.start
                    corners.append(np.tile(corner, (len(parts[-1]), 1)))
                of_rows.append((_together(parts), np.concatenate(corners)))
                self.workspace.save(f'objects_{number}', _packed(*of_rows[-1]))
                self.workspace.finish(SLICES, number)
        parts, corners = zip(*of_rows, strict=True)
        return self._joined(_together(parts), np.concatenate(corners))

    def _joined(self, objects: Objects, corners: np.ndarray) -> Objects:
        joined = join(objects, corners, [window for window, _ in self.windows], self.pixels.size)
        remaining = _without_duplicates(joined.objects, joined.corners)
        if joined.cut:
            self.progress.report(
                f'{self.pixels.source.name}: slices cut {joined.cut} of {len(objects)} objects; '
                f'after parts were joined, {joined.is_cut[remaining].sum()} of {len(remaining)} '
                'are cut'
            )
        return joined.objects[remaining]

    def _rows(self) -> Iterator[tuple[int, Iterator[Predicted]]]:
        """Yield the number and the predicted slices of each row that is not finished.

        The batches are the same however many rows are finished, so a run that continues repeats the
        last one, and rounds as a run that was never killed.
        """
        by_row = groupby(self.windows, lambda pair: pair[0].rows.start)
        rows, done = [list(row) for _, row in by_row], self.workspace.finished[SLICES]
        first = sum(map(len, rows[:done]))
        start = first // self.batch_size * self.batch_size
        self.progress.expect(len(rows) - done)
        with closing(self._predicted(self.windows[start:])) as predicted:
            predicted_now = islice(predicted, first - start, None)
            for number, row in enumerate(rows[done:], done + 1):
                listed = self.progress(row, f'slices, row {number} of {len(rows)}')
                yield number, (next(predicted_now) for _ in listed)

    def _predicted(self, windows: Sequence[tuple[Window, Window]]) -> Iterator[Predicted]:
        """Predict slices in batches, and read the next batch meanwhile."""

        def read(pair: tuple[Window, Window]) -> tuple[Any, np.ndarray | None]:
            image = self.pixels.pixels(pair[0])
            valid = self.pixels.valid(pair[0])  # some files know it only after they were read
            has_data = valid is None or valid.any()
            return (self.model.prepare(image) if has_data else None), valid

        images = map(read, windows)
        batches = iter(lambda: list(islice(images, self.batch_size)), [])
        remaining = iter(windows)
        with closing(prefetch(batches)) as batches_read:
            for batch in batches_read:
                prepared = [image for image, _ in batch if image is not None]
                predictions = iter(self.model.predict_batch(prepared) if prepared else ())
                for image, valid in batch:
                    prediction = None if image is None else next(predictions)
                    yield *next(remaining), prediction, valid


def _together(parts: Sequence[Objects]) -> Objects:
    """Return the objects of all parts, some of which may have no objects and no masks."""
    return Objects.cat([part for part in parts if len(part)] or [parts[-1]])


def _moved(detections: Detections, window: Window, valid: np.ndarray | None) -> Objects:
    """Return the objects of a slice in the coordinates of the image, with windows as masks.

    ``valid`` (h, w) tells which pixels of the slice have data; None if all of them have.
    """
    if valid is not None:
        centers = ((detections.boxes[:, :2] + detections.boxes[:, 2:]) / 2).astype(int)
        columns, rows = np.minimum(centers, np.array(valid.shape[::-1]) - 1).T
        detections = detections[valid[rows, columns]]
    masks = detections.masks
    if masks is not None:
        inner = [Window.around(box.tolist(), window.size) for box in detections.boxes]
        masks = [(w, mask[tuple(w)].copy()) for w, mask in zip(inner, masks, strict=True)]
    objects = Objects(detections.boxes, detections.scores, detections.labels, masks)
    if valid is not None and masks is not None:
        objects = objects.with_data(lambda w: valid[tuple(w)])
    masks = objects.masks
    if masks is not None:
        starts = [span.start for span in window]
        masks = [(Window(*map(shifted, inner, starts)), mask) for inner, mask in masks]
    corner = np.array([window.columns.start, window.rows.start] * 2, np.float32)
    return replace(objects, boxes=objects.boxes + corner, masks=masks)


def _packed(objects: Objects, corners: np.ndarray) -> dict[str, np.ndarray]:
    """Return objects, and the corner of the slice of each of them, as arrays for a file."""
    arrays = dict(
        boxes=objects.boxes, scores=objects.scores, labels=objects.labels, sources=corners
    )
    if objects.masks is None:
        return arrays
    spans = [[span.start, span.stop] for window, _ in objects.masks for span in window]
    pixels = [np.packbits(mask) for _, mask in objects.masks]
    return arrays | dict(
        windows=np.array(spans, np.int64).reshape(-1, 4),
        masks=np.concatenate([np.zeros(0, np.uint8), *pixels]),
    )


def _unpacked(arrays: dict[str, np.ndarray]) -> tuple[Objects, np.ndarray]:
    """Return the objects and the corners that :func:`_packed` has packed."""
    masks = None
    if 'masks' in arrays:
        masks, start = [], 0
        for top, bottom, left, right in arrays['windows'].tolist():
            window = Window(slice(top, bottom), slice(left, right))
            size = math.prod(window.size)
            stop = start + -(-size // 8)
            pixels = np.unpackbits(arrays['masks'][start:stop], count=size).reshape(window.size)
            masks.append((window, pixels.astype(bool)))
            start = stop
    objects = Objects(*(arrays[name] for name in ('boxes', 'scores', 'labels')), masks)
    return objects, arrays['sources']


def _without_duplicates(objects: Objects, corners: np.ndarray) -> np.ndarray:
    """Return the indices of the objects that are kept, by decreasing score.

    The ``corners`` (n, 2) of the slices tell them apart. A box is compared only with boxes of
    slices that it may overlap, so the time is not quadratic in the number of slices.
    """
    boxes, labels = objects.boxes, objects.labels
    slices, slice_of = np.unique(corners, axis=0, return_inverse=True)
    slice_of = slice_of.ravel()
    groups = [np.flatnonzero(slice_of == i) for i in range(len(slices))]
    starts = np.array([boxes[group, :2].min(0) for group in groups])
    stops = np.array([boxes[group, 2:].max(0) for group in groups])
    others = []  # for each slice, the boxes of the slices that it may overlap
    for i in range(len(slices)):
        meet = ((starts < stops[i]) & (stops > starts[i])).all(1)
        meet[i] = False
        others.append(np.concatenate([groups[j] for j in np.flatnonzero(meet)] or [groups[i][:0]]))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    remaining, is_left = [], np.ones(len(boxes), bool)
    for best in np.argsort(-objects.scores, kind='stable'):
        if not is_left[best]:
            continue
        remaining.append(best)
        near = others[slice_of[best]]
        first = np.maximum(boxes[near, :2], boxes[best, :2])
        sides = np.minimum(boxes[near, 2:], boxes[best, 2:]) - first
        shared = sides.clip(0).prod(1) > MAX_SHARED * np.minimum(areas[near], areas[best])
        # A box with a higher score that shares as much would have dropped this one.
        is_left[near[shared & (labels[near] == labels[best])]] = False
    return np.array(remaining, int)
