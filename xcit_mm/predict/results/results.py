"""The objects of an image."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
import numpy as np
import shapely
from mmengine.structures import InstanceData

from ...base.colors import Color, class_colors
from ...base.environment import require
from ...data.transforms.decode import rgb_of
from ...large.labels.outlines import outlines_of_masks
from .class_names import category_ids
from .drawing import draw_objects, topmost_masks
from .run_lengths import run_lengths
from .short_texts import few_names, size_text
from .supervision_detections import labels_of, to_supervision

SCORE_THR = 0.3  # objects with a lower score are not shown unless a user asks for them


class DetectedObject(NamedTuple):
    """An object of :class:`Detections`.

    Attributes:
        box: (4,), left, top, right and bottom in pixels of the image.
        score: 0..1.
        label: An index into the classes of the model.
        name: The name of the class.
        mask: (H, W) bool; None for a model without masks. For a large image, a window of the image
            and the mask in it.
    """

    box: np.ndarray
    score: float
    label: int
    name: str
    mask: Any

    def __repr__(self) -> str:
        corners = ', '.join(f'{value:.1f}' for value in self.box)
        return f'{type(self).__name__}({self.name} {self.score:.2f} at {corners})'


@dataclass(frozen=True, repr=False)
class Detections:
    """The n objects of an image of H x W pixels, sorted by decreasing score.

    An iteration yields each :class:`.DetectedObject`, and so does an index. A slice, an array of
    indices or an array (n,) of bool selects objects.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        boxes: (n, 4), left, top, right and bottom in pixels of the image.
        scores: (n,), 0..1.
        labels: (n,), indices into ``classes``.
        masks: (n, H, W) bool; None for a model without masks.
        classes: Names of the classes.
        palette: A color for each class.
    """

    image: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    classes: tuple[str, ...]
    palette: tuple[Color, ...]

    @classmethod
    def from_instances(
        cls, instances: InstanceData, image: np.ndarray, *classes_and_palette: tuple
    ) -> 'Detections':
        """Convert mmdet's ``pred_instances``."""
        if (instances.scores.diff() > 0).any():  # a copy of the masks can take gigabytes
            instances = instances[instances.scores.argsort(descending=True, stable=True)]
        return cls(
            image,
            getattr(instances.bboxes, 'tensor', instances.bboxes).float().cpu().numpy(),
            instances.scores.float().cpu().numpy(),
            instances.labels.cpu().numpy(),
            instances.masks.cpu().numpy() if 'masks' in instances else None,
            *classes_and_palette,
        )

    @classmethod
    def from_supervision(
        cls,
        detections: Any,
        image: np.ndarray,
        classes: Sequence[str],
        palette: Sequence[Color] | None = None,
    ) -> 'Detections':
        """Convert ``supervision.Detections``, for example after its NMS.

        Args:
            detections: The objects. Those without ``confidence`` have a score of 1. What a
                prediction has no place for, such as ``tracker_id``, is left out.
            image: The image, as an array that ``predict`` takes.
            classes: Names of the classes, such as ``model.classes``.
            palette: A color for each class. Default: distinct colors.

        Raises:
            DependencyError: If supervision is not installed.
        """
        require('supervision')
        labels, image = labels_of(detections), rgb_of(image)
        scores = detections.confidence
        scores = np.ones(len(labels), np.float32) if scores is None else scores
        order = np.argsort(-scores, kind='stable')
        masks, colors = detections.mask, class_colors(palette, len(classes))
        masks = None if masks is None else np.asarray(masks).astype(bool, copy=False)
        objects = Detections(image, detections.xyxy, scores, labels, masks, tuple(classes), colors)
        return objects[order]

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[DetectedObject]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> 'Detections | DetectedObject':
        """Return the object at an index, or the objects that a slice or an array selects.

        Raises:
            IndexError: If there is no such object.
        """
        everything = np.arange(len(self))
        chosen = everything[index]
        if chosen.ndim == 0:
            label = int(self.labels[chosen])
            mask = None if self.masks is None else self.masks[chosen]
            return DetectedObject(
                self.boxes[chosen], float(self.scores[chosen]), label, self.classes[label], mask
            )
        if np.array_equal(chosen, everything):
            return self  # without a copy of the masks, which can take gigabytes
        names = ('boxes', 'scores', 'labels') + (() if self.masks is None else ('masks',))
        values = {name: getattr(self, name) for name in names}
        for name, value in values.items():  # the masks of a large image are a list
            is_array = isinstance(value, np.ndarray)
            values[name] = value[chosen] if is_array else [value[i] for i in chosen]
        return replace(self, **values)

    def __repr__(self) -> str:
        objects = f'{len(self) or "no"} object{"s" if len(self) != 1 else ""}'
        text = f'{objects} in {size_text(self._size)}'
        if len(self):
            labels, counts = np.unique(self.labels, return_counts=True)
            order = np.argsort(-counts, kind='stable')
            names = [f'{counts[i]} {self.classes[labels[i]]}' for i in order]
            low, high = self.scores.min(), self.scores.max()
            scores = f'scores {low:.2f} to {high:.2f}' if len(self) > 1 else f'score {high:.2f}'
            text += f': {few_names(names)}; {scores}'
        return f'{type(self).__name__}({text})'

    @property
    def areas(self) -> np.ndarray:
        """The number of pixels of each mask (n,), or the area of each box without masks."""
        if self.masks is None:
            left, top, right, bottom = self.boxes.astype(np.float64).T
            return (right - left) * (bottom - top)
        return np.array([np.count_nonzero(mask) for _, mask in self._cut_out_masks()], np.float64)

    def above(self, score_thr: float) -> 'Detections':
        """Return the objects with at least this score."""
        return self[self.scores >= score_thr]

    def counts(self) -> list[dict[str, float]]:
        """Return the number of ``objects`` of each class."""
        numbers = np.bincount(self.labels, minlength=len(self.classes))
        return [dict(objects=number) for number in numbers.tolist()]

    def draw(self, boxes: bool = True, masks: bool = True) -> np.ndarray:
        """Draw the objects over the image.

        Args:
            boxes: Draw boxes, names and scores.
            masks: Draw masks, if the model has them.

        Returns:
            RGB, uint8, (H, W, 3); a small image is enlarged by an integer factor.
        """
        return draw_objects(
            self.image,
            self._drawn_boxes() if boxes else None,
            self._topmost_masks() if masks and self.masks is not None else None,
            [self.palette[i] for i in self.labels],
            self._texts(),
        )

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Return the objects as annotations in COCO's format, without ``id``.

        The categories of COCO's 80 classes have COCO's numbers, others the label plus one. The
        name of the class is the ``category_name``.
        """
        categories, areas = category_ids(self.classes), self.areas.tolist()
        annotations = []
        for i, (left, top, right, bottom) in enumerate(self.boxes.tolist()):
            annotation = dict(
                image_id=image_id,
                category_id=categories[self.labels[i]],
                category_name=self.classes[self.labels[i]],
                bbox=[left, top, right - left, bottom - top],
                score=float(self.scores[i]),
                area=areas[i],
                iscrowd=0,
            )
            if (rle := self._run_lengths(i)) is not None:
                annotation['segmentation'] = {**rle, 'counts': rle['counts'].decode()}
            annotations.append(annotation)
        return annotations

    def to_supervision(self) -> Any:
        """Return the objects as ``supervision.Detections``.

        ``class_id`` are the labels, ``confidence`` the scores, and ``data['class_name']`` the
        names of the classes. The masks of a large image are a ``CompactMask``.

        Raises:
            DependencyError: If supervision is not installed.
        """
        masks = self._masks_for_supervision()
        return to_supervision(self.boxes, self.labels, self.classes, self.scores, masks)

    def to_pandas(self) -> Any:
        """Return the objects as a ``pandas.DataFrame`` with a row for each.

        The columns are ``label``, ``name`` (of the class), ``score``, ``x1``, ``y1``, ``x2`` and
        ``y2`` (left, top, right and bottom in pixels) and ``area`` (see :attr:`areas`).

        Raises:
            DependencyError: If pandas is not installed.
        """
        require('pandas')
        import pandas

        names = pandas.Series([self.classes[i] for i in self.labels], dtype=str)
        corners = dict(zip(('x1', 'y1', 'x2', 'y2'), self.boxes.T, strict=True))
        columns = dict(label=self.labels, name=names, score=self.scores, **corners)
        return pandas.DataFrame(dict(**columns, area=self.areas))

    def to_polygons(self) -> np.ndarray:
        """Return the outline of each object as a polygon of shapely, in pixels of the image.

        Returns:
            An array (n,). Each mask has a ``MultiPolygon`` along the sides of its pixels, with
            holes; it is empty if the mask is empty. Without masks, each box is a ``Polygon``.
        """
        if self.masks is None:
            return shapely.box(*self.boxes.astype(np.float64).T)
        return outlines_of_masks(self._cut_out_masks())

    # The picture of a large image is reduced, and its masks are windows.

    @property
    def _size(self) -> tuple[int, int]:
        return self.image.shape[:2]

    def _cut_out_masks(self) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
        """Yield the corner (x, y) of the smallest window around each mask, and the mask in it."""
        for mask in self.masks:
            x, y, width, height = cv2.boundingRect(mask.view(np.uint8))
            yield (x, y), mask[y : y + height, x : x + width]

    def _masks_for_supervision(self) -> Any:
        return self.masks

    def _drawn_boxes(self) -> np.ndarray:
        return self.boxes

    def _topmost_masks(self) -> np.ndarray:
        return topmost_masks(self.masks)

    def _texts(self) -> list[str]:
        names_and_scores = zip(self.labels, self.scores, strict=True)
        return [f'{self.classes[i]} {score:.2f}' for i, score in names_and_scores]

    def _run_lengths(self, i: int) -> dict[str, Any] | None:
        return None if self.masks is None else run_lengths(self.masks[i])
