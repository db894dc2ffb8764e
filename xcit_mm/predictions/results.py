"""Predictions for an image: objects, or the class of each pixel."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from mmengine.structures import InstanceData, PixelData
from pycocotools import mask as coco_mask

from .class_names import category_ids
from .drawing import Colour, draw_objects, draw_regions, topmost_masks

INSTANCE_OFFSET = 1000  # mmdet's; a panoptic model numbers its objects in steps of it


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
        palette: A colour for each class.
    """

    image: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]

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
        kept = self.scores >= score_thr
        if kept.all():  # a copy of the masks can take gigabytes
            return self
        names = ('boxes', 'scores', 'labels') + (() if self.masks is None else ('masks',))
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

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
            self.boxes if boxes else None,
            topmost_masks(self.masks if masks else None),
            [self.palette[i] for i in self.labels],
            [f'{self.classes[i]} {s:.2f}' for i, s in zip(self.labels, self.scores, strict=True)],
        )

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Return the objects as annotations in COCO's format, without ``id``.

        The categories of COCO's 80 classes have COCO's numbers, others the label plus one.
        """
        masks = None if self.masks is None else map(run_lengths, self.masks)
        return coco_annotations(self, image_id, masks)


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Return the run lengths of a mask (H, W) of bool, as pycocotools encodes it."""
    # pycocotools reads columns; OpenCV transposes several times as fast as NumPy copies.
    return coco_mask.encode(cv2.transpose(mask.view(np.uint8)).T)


def coco_annotations(
    objects: Any, image_id: int, masks: Iterable[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return objects as annotations in COCO's format, without ``id``.

    ``objects`` have ``boxes``, ``scores``, ``labels`` and ``classes``; ``masks`` are run lengths.
    """
    categories = category_ids(objects.classes)
    annotations = []
    for i, (left, top, right, bottom) in enumerate(objects.boxes.tolist()):
        annotation = dict(
            image_id=image_id,
            category_id=categories[objects.labels[i]],
            bbox=[left, top, right - left, bottom - top],
            score=float(objects.scores[i]),
            area=(right - left) * (bottom - top),
            iscrowd=0,
        )
        annotations.append(annotation)
    for annotation, rle in zip(annotations, masks or ()):  # noqa: B905  none or one for each
        annotation['area'] = float(coco_mask.area(rle))
        annotation['segmentation'] = {**rle, 'counts': rle['counts'].decode()}
    return annotations


@dataclass(frozen=True)
class Segmentation:
    """The class of each pixel of an image of H x W pixels.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        labels: (H, W), indices into ``classes``: uint8, or int16 for more than 256 classes. A
            panoptic model gives ``len(classes)`` to a pixel without a class.
        classes: Names of the classes.
        palette: A colour for each class.
        segments: (H, W) int32, of a panoptic model: one value for each object, and one for each
            class without objects. None for other models.
    """

    image: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
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
        """Return the share of the image, 0..1, for each class in it, the largest first."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes))[: len(self.classes)]
        order = np.argsort(-counts, kind='stable')
        return {int(i): counts[i] / self.labels.size for i in order if counts[i]}

    def draw(self, opacity: float = 0.5, legend_rows: int | None = None) -> np.ndarray:
        """Draw the colours of the classes and the edges of segments, and a legend below.

        Args:
            opacity: Opacity of the colours, 0..1.
            legend_rows: Rows of the legend, which shows the largest classes. None: all classes.

        Returns:
            RGB, uint8, (H + legend, W, 3); a small image is enlarged by an integer factor.
        """
        shares = self.shares().items()
        legend = [(self.palette[i], f'{self.classes[i]} {share:.1%}') for i, share in shares]
        return draw_regions(
            self.image, self.labels, self.palette, legend, opacity, legend_rows, self.segments
        )
