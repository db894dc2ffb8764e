"""Predictions for an image: objects, or the class of each pixel."""

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from mmengine.structures import InstanceData, PixelData
from pycocotools import mask as coco_mask

from .class_names import category_ids
from .drawing import Color, draw_objects, draw_regions, topmost_masks

INSTANCE_OFFSET = 1000  # mmdet's; a panoptic model numbers its objects in steps of it
SCORE_THR = 0.3  # objects with a lower score are not shown unless a user asks for them


@dataclass(frozen=True)
class Detections:
    """The n objects of an image of H x W pixels, sorted by decreasing score.

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

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score_thr: float) -> 'Detections':
        """Return the objects with at least this score."""
        return self.kept(np.flatnonzero(self.scores >= score_thr))

    def kept(self, kept: np.ndarray) -> 'Detections':
        """Return the objects with these indices, in their order."""
        if len(kept) == len(self):
            return self  # without a copy of the masks, which can take gigabytes
        names = ('boxes', 'scores', 'labels') + (() if self.masks is None else ('masks',))
        values = {name: getattr(self, name) for name in names}
        for name, value in values.items():  # the masks of a large image are a list
            is_array = isinstance(value, np.ndarray)
            values[name] = value[kept] if is_array else [value[i] for i in kept]
        return replace(self, **values)

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

        The categories of COCO's 80 classes have COCO's numbers, others the label plus one.
        """
        categories = category_ids(self.classes)
        annotations = []
        for i, (left, top, right, bottom) in enumerate(self.boxes.tolist()):
            annotation = dict(
                image_id=image_id,
                category_id=categories[self.labels[i]],
                bbox=[left, top, right - left, bottom - top],
                score=float(self.scores[i]),
                area=(right - left) * (bottom - top),
                iscrowd=0,
            )
            if (rle := self._run_lengths(i)) is not None:
                annotation['area'] = float(coco_mask.area(rle))
                annotation['segmentation'] = {**rle, 'counts': rle['counts'].decode()}
            annotations.append(annotation)
        return annotations

    # The picture of a large image is reduced, and its masks are windows.

    def _drawn_boxes(self) -> np.ndarray:
        return self.boxes

    def _topmost_masks(self) -> np.ndarray:
        return topmost_masks(self.masks)

    def _texts(self) -> list[str]:
        names_and_scores = zip(self.labels, self.scores, strict=True)
        return [f'{self.classes[i]} {score:.2f}' for i, score in names_and_scores]

    def _run_lengths(self, i: int) -> dict[str, Any] | None:
        return None if self.masks is None else run_lengths(self.masks[i])


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Return the run lengths of a mask (H, W) of bool, as pycocotools encodes it."""
    # pycocotools reads columns; OpenCV transposes several times as fast as NumPy copies.
    return coco_mask.encode(cv2.transpose(mask.view(np.uint8)).T)


@dataclass(frozen=True)
class Segmentation:
    """The class of each pixel of an image of H x W pixels.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        labels: (H, W), indices into ``classes``: uint8, or int16 for more than 256 classes. A
            pixel without a class in a panoptic model has the label ``len(classes)``.
        classes: Names of the classes.
        palette: A color for each class.
        segments: (H, W) int32, of a panoptic model: one value for each object, and one for each
            class without objects. None for other models.
    """

    image: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    segments: np.ndarray | None = None

    @classmethod
    def from_panoptic(
        cls, data: PixelData, image: np.ndarray, classes: tuple[str, ...], palette: tuple
    ) -> 'Segmentation':
        """Convert mmdet's ``pred_panoptic_seg``."""
        segments = data.sem_seg[0].cpu().numpy()
        dtype = np.uint8 if len(classes) < 256 else np.int16
        labels = (segments % INSTANCE_OFFSET).astype(dtype)
        return cls(image, labels, classes, palette, segments)

    def shares(self) -> dict[int, float]:
        """Return the share of the pixels with data, 0..1, for each class, the largest first."""
        counts = self._counts()
        total, counts = counts.sum(), counts[: len(self.classes)]
        order = np.argsort(-counts, kind='stable')
        return {int(i): counts[i] / total for i in order if counts[i]}

    def counts(self) -> list[dict[str, float]]:
        """Return the ``pixels`` of each class, and their percentage of the pixels with data."""
        numbers = self._counts()
        percent = 100 * numbers / max(1, numbers.sum())
        pairs = zip(numbers[: len(self.classes)].tolist(), percent.tolist(), strict=False)
        return [dict(pixels=number, percent=share) for number, share in pairs]

    def draw(self, opacity: float = 0.5, legend_rows: int | None = None) -> np.ndarray:
        """Draw the colors of the classes and the edges of segments, and a legend below.

        Args:
            opacity: Opacity of the colors, 0..1.
            legend_rows: Rows of the legend, which shows the largest classes. None: all classes.

        Returns:
            RGB, uint8, (H + legend, W, 3); a small image is enlarged by an integer factor.
        """
        shares = self.shares().items()
        legend = [(self.palette[i], f'{self.classes[i]} {share:.1%}') for i, share in shares]
        labels = self._drawn_labels()
        return draw_regions(
            self.image, labels, self.palette, legend, opacity, legend_rows, self.segments
        )

    # The labels of a large image are read by windows.

    def _counts(self) -> np.ndarray:
        """Return the number of pixels of each label, without those that have no data."""
        return np.bincount(self.labels.ravel(), minlength=len(self.classes))

    def _drawn_labels(self) -> np.ndarray:
        return self.labels
