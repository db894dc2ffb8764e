"""The annotated objects of an image of any size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...base.errors import UserError
from ..files.symmetries import Symmetry

NO_POLYGON = (np.zeros(6),)  # mmdet's polygon of an object that is ignored


@dataclass(frozen=True)
class AnnotatedObjects:
    """The n annotated objects of an image.

    Attributes:
        boxes: (n, 4) float32; left, top, right and bottom in pixels, within the image.
        labels: (n,) int64.
        are_ignored: (n,) bool; objects that are neither targets nor background.
        polygons: For each object, the polygons that its mask consists of, each an array of
            x1, y1, x2, y2, ... in pixels; None for a model without masks.
    """

    boxes: np.ndarray
    labels: np.ndarray
    are_ignored: np.ndarray
    polygons: list[list[np.ndarray]] | None = None

    @classmethod
    def of_instances(
        cls, instances: Sequence[dict], size: tuple[int, int], with_mask: bool, file: str
    ) -> 'AnnotatedObjects':
        """Return the objects of an image (H, W) that mmdet's datasets list as ``instances``.

        A crowd, whose mask is given by run lengths, is ignored. ``file`` is the image in messages.

        Raises:
            UserError: If the mask of another object is given by run lengths.
        """
        boxes = np.array([i['bbox'] for i in instances], np.float32).reshape(-1, 4)
        labels = np.array([i['bbox_label'] for i in instances], np.int64)
        are_ignored = np.array([i['ignore_flag'] for i in instances], bool)
        boxes = boxes.clip(0, np.array([*size[::-1], *size[::-1]], np.float32))
        if not with_mask:
            return cls(boxes, labels, are_ignored)
        polygons = []
        for number, instance in enumerate(instances):
            mask = instance.get('mask') or []
            if isinstance(mask, dict) and not are_ignored[number]:
                raise UserError(
                    f'{file}: the mask of object {number + 1} of {len(instances)} is given by run '
                    'lengths, which would be decoded for the whole image: write polygons instead, '
                    'or train a model without masks'
                )
            parts = [np.array(p, float) for p in mask] if isinstance(mask, list) else []
            are_ignored[number] |= not parts
            polygons.append(parts or list(NO_POLYGON))
        return cls(boxes, labels, are_ignored, polygons)

    def turned(self, symmetry: Symmetry, size: tuple[int, int]) -> 'AnnotatedObjects':
        """Return the objects of the image (H, W) that is flipped and turned."""
        boxes, polygons = symmetry.boxes(self.boxes, size), self.polygons
        if polygons is not None:
            polygons = [
                [symmetry.points(p.reshape(-1, 2), size).ravel() for p in parts]
                for parts in polygons
            ]
        return AnnotatedObjects(boxes, self.labels, self.are_ignored, polygons)
