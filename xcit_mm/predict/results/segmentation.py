"""The class of each pixel of an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from mmengine.structures import PixelData

from ...base.colors import Color, class_colors
from ...base.environment import require
from ...data.transforms.decode import rgb_of
from ...large.labels.outlines import outlines_by_label, outlines_of
from .drawing import draw_regions, topmost_masks
from .short_texts import few_names, size_text
from .supervision_detections import labels_of, to_supervision

INSTANCE_OFFSET = 1000  # mmdet's; a panoptic model numbers its objects in steps of it
SEGMENT = 'segment'  # the number of a segment in ``data`` of supervision's detections


@dataclass(frozen=True, repr=False)
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
        labels = (segments % INSTANCE_OFFSET).astype(_dtype_with_no_class(classes))
        return cls(image, labels, classes, palette, segments)

    @classmethod
    def from_supervision(
        cls,
        detections: Any,
        image: np.ndarray,
        classes: Sequence[str],
        palette: Sequence[Color] | None = None,
    ) -> 'Segmentation':
        """Convert the masks of ``supervision.Detections``.

        Where masks overlap, the first one counts. Pixels without a mask have the label
        ``len(classes)``. If ``data`` has a ``segment`` for each mask, as :meth:`to_supervision` of
        a panoptic model returns it, they become the segments.

        Args:
            detections: The masks.
            image: The image, as an array that ``predict`` takes.
            classes: Names of the classes, such as ``model.classes``.
            palette: A color for each class. Default: distinct colors.

        Raises:
            DependencyError: If supervision is not installed.
        """
        require('supervision')
        labels, image = labels_of(detections), rgb_of(image)
        topmost = topmost_masks(np.asarray(detections.mask).astype(bool, copy=False))
        no_class, segments = len(classes), detections.data.get(SEGMENT)
        values = np.array([no_class, *labels], _dtype_with_no_class(classes))
        if segments is not None:
            segments = np.array([no_class, *segments], np.int32)[topmost]
        colors = class_colors(palette, len(classes))
        return Segmentation(image, values[topmost], tuple(classes), colors, segments)

    def __repr__(self) -> str:
        shares = [f'{share:.1%} {self.classes[i]}' for i, share in self.shares().items()]
        return f'{type(self).__name__}({size_text(self._size)}: {few_names(shares)})'

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

    def to_supervision(self) -> Any:
        """Return ``supervision.Detections`` with a mask for each class in the image.

        For a panoptic model, there is a mask for each segment, whose number is in
        ``data['segment']``. The boxes surround the masks, and there is no ``confidence``.

        Raises:
            DependencyError: If supervision is not installed.
        """
        of_segments = self.segments is not None
        values = np.unique(self.segments if of_segments else self.labels)
        labels = (values % INSTANCE_OFFSET if of_segments else values).astype(np.int64)
        is_class = (labels >= 0) & (labels < len(self.classes))
        values, labels = values[is_class], labels[is_class]
        masks = values[:, None, None] == (self.segments if of_segments else self.labels)
        rectangles = [cv2.boundingRect(mask.view(np.uint8)) for mask in masks]
        boxes = np.array(rectangles, np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        data = {SEGMENT: values} if of_segments else {}
        return to_supervision(boxes, labels, self.classes, masks=masks, **data)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each class.

        The columns are ``label``, ``name``, ``pixels`` (how many have the class) and ``share`` (of
        the pixels with data, 0..1).

        Raises:
            DependencyError: If pandas is not installed.
        """
        require('pandas')
        import pandas

        counts = self._counts()
        total, counts = max(1, counts.sum()), counts[: len(self.classes)]
        names = pandas.Series(self.classes, dtype=str)
        columns = dict(label=np.arange(len(counts)), name=names, pixels=counts)
        return pandas.DataFrame(dict(**columns, share=counts / total))

    def to_polygons(self) -> dict[int, Any]:
        """Return the outline of each class in the image as a polygon of shapely, by label.

        Returns:
            A ``MultiPolygon`` for each label, in pixels of the image, along the sides of the pixels
            and with holes.
        """
        polygons, labels = self._outlines()
        is_class = labels < len(self.classes)
        return outlines_by_label(polygons[is_class], labels[is_class])

    def draw(self, opacity: float = 0.5, legend_rows: int | None = None) -> np.ndarray:
        """Draw the colors of the classes with the outlines of regions, and a legend below.

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

    @property
    def _size(self) -> tuple[int, int]:
        return self.image.shape[:2]

    def _outlines(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the polygons (m,) of all regions, and their labels (m,)."""
        return outlines_of(self.labels)

    def _counts(self) -> np.ndarray:
        """Return the number of pixels of each label, without those that have no data."""
        return np.bincount(self.labels.ravel(), minlength=len(self.classes))

    def _drawn_labels(self) -> np.ndarray:
        return self.labels


def _dtype_with_no_class(classes: Sequence[str]) -> type[np.integer]:
    """Return the dtype of labels, one of which is the number of the classes."""
    return np.uint8 if len(classes) < 256 else np.int16
