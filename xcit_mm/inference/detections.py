"""The objects that were found in an image."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from .classes import Colour, category_ids
from .drawing import draw_objects


@dataclass(frozen=True)
class Detections:
    """The n objects of an image of H x W pixels, the surest first.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        boxes: (n, 4), left, top, right and bottom in pixels of the image.
        scores: (n,), 0..1.
        labels: (n,), indices into ``classes``.
        masks: (n, H, W) bool; None of a model without masks.
        classes: Their names.
        palette: A colour for each class.
    """

    image: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score_thr: float) -> 'Detections':
        """Those with at least this score."""
        kept = self.scores >= score_thr
        if kept.all():  # the masks are not copied: they may be gigabytes
            return self
        return replace(
            self,
            boxes=self.boxes[kept],
            scores=self.scores[kept],
            labels=self.labels[kept],
            masks=None if self.masks is None else self.masks[kept],
        )

    def draw(self, boxes: bool = True, masks: bool = True) -> np.ndarray:
        """Draw the objects over the image.

        Args:
            boxes: With the names and scores.
            masks: Where the model has them.

        Returns:
            RGB, uint8, (H, W, 3), a small image enlarged by a whole number.
        """
        return draw_objects(
            self.image,
            self.boxes if boxes else None,
            [self.palette[i] for i in self.labels],
            [f'{self.classes[i]} {s:.2f}' for i, s in zip(self.labels, self.scores, strict=True)],
            self.masks if masks else None,
        )

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """The annotations of the objects in COCO's format, without ``id``.

        Args:
            image_id: Of the image.

        Returns:
            Of each ``category_id`` (COCO's own of its 80 classes, else the label and one),
            ``bbox`` (left, top, width, height), ``score``, ``area`` and, of a model with masks,
            ``segmentation`` (run lengths).
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
            if self.masks is not None:
                rle = coco_mask.encode(np.asfortranarray(self.masks[i], np.uint8))
                annotation['area'] = float(coco_mask.area(rle))
                annotation['segmentation'] = {**rle, 'counts': rle['counts'].decode()}
            annotations.append(annotation)
        return annotations
