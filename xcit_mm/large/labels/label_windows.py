"""Labels for segmentors, read by windows."""

from collections.abc import Iterator, Mapping
from copy import copy

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window, tiles, whole
from ...data.datasets.labels import IGNORED, LabelRule, class_numbers, new_labels, of_color_image
from ...data.transforms.decode import (
    LABELS_ELSEWHERE,
    LABELS_MISSING,
    LABELS_OF_OTHER_SIZE,
    BadImageError,
    LoadImage,
)
from ...data.transforms.label_images import decode_labels
from ..files.image_source import ImageSource, tile_of
from ..files.open_image import open_image
from ..files.symmetries import Symmetry, TurnedImage
from .placed_rasters import laid_over


class LabelWindows:
    """The class of each pixel of an image, read by windows.

    Pixels where the image has no data are ignored, whatever their label is.

    Args:
        source: The labels as an image of one channel.
        reduce_zero_label: As in mmseg: 0 is ignored, and the first class is 1.
        label_map: The new number of each label, if the classes of the dataset differ from the
            classes of the file.
        image: The image, if some of its pixels may have no data.

    Attributes:
        name: The name of the labels in messages.
        shape: (H, W).
        counts: The number of pixels of each label, int64, counted when the labels are opened; at
            least the labels 0 to 255.
        ignore: The label of pixels without a class.
        max_rows: See :class:`.ImageSource`; for the labels and the image.

    Raises:
        UserError: If the file cannot be read, has several channels, or values that are no labels.
    """

    ignore = IGNORED

    def __init__(
        self,
        source: ImageSource,
        reduce_zero_label: bool = False,
        label_map: Mapping[int, int] | None = None,
        image: ImageSource | None = None,
    ) -> None:
        self.name = source.name
        if source.shape[2] != 1:
            raise UserError(of_color_image(self.name, source.shape))
        self._source, self._reduces_zero = source, reduce_zero_label
        self._image = image if image is not None and image.has_gaps else None
        self._new_labels = new_labels(source.dtype.itemsize, reduce_zero_label, label_map)
        self.counts = self._count()

    @property
    def shape(self) -> tuple[int, int]:
        return self._source.shape[:2]

    @property
    def max_rows(self) -> int | None:
        sources = [self._source] if self._image is None else [self._source, self._image]
        return min((s.max_rows for s in sources if s.max_rows is not None), default=None)

    @property
    def labeled(self) -> int:
        """The number of pixels that have a class."""
        return int(self.counts.sum() - self.counts[self.ignore])

    def read(self, window: Window) -> np.ndarray:
        """Return the classes of a window, (h, w) uint8, or uint16 if the file has more bits.

        Raises:
            UserError: If the window cannot be read.
        """
        labels = self._new_labels[self._in_file(window)]
        valid = self._valid(window)
        if valid is not None:
            labels[~valid] = self.ignore
        return labels

    def of_image(self, image: ImageSource | None) -> 'LabelWindows':
        """Return the labels with the same image opened another time, or without it if None.

        The counts stay, also those without the image.
        """
        labels = copy(self)
        labels._image = image if image is not None and image.has_gaps else None
        return labels

    def turned(self, symmetry: Symmetry) -> 'LabelWindows':
        """Return the labels of the flipped and turned image, without a copy."""
        turned = copy(self)
        turned._source = TurnedImage(self._source, symmetry)
        if self._image is not None:
            turned._image = TurnedImage(self._image, symmetry)
        return turned

    def windows(self) -> Iterator[Window]:
        """Yield windows that cover the labels; a file in strips is decoded once for all of them."""
        return tiles(whole(self.shape), tile_of(self.max_rows))

    def require_classes(self, rule: LabelRule) -> None:
        """Raise a UserError if a label is neither a class nor ignored by the loss."""
        wrong = rule.broken_by(np.flatnonzero(self.counts))
        if len(wrong):
            raise UserError(rule.refusal(int(wrong[0]), self.name, self._reduces_zero))

    def require_unchanged(self) -> None:
        """Raise a UserError if the file has changed since it was opened."""
        self._source.require_unchanged()

    def _count(self) -> np.ndarray:
        in_file, missing = np.zeros(len(self._new_labels), np.int64), 0
        for window in self.windows():
            labels, valid = self._in_file(window), self._valid(window)
            if valid is not None:
                missing += valid.size - np.count_nonzero(valid)
                labels = labels[valid]
            in_file += np.bincount(labels.ravel(), minlength=len(in_file))
        counts = np.zeros(max(self.ignore, int(self._new_labels.max())) + 1, np.int64)
        np.add.at(counts, self._new_labels, in_file)
        counts[self.ignore] += missing
        return counts

    def _valid(self, window: Window) -> np.ndarray | None:
        """Return which pixels have a label, even an ignored one, and data in the image."""
        sources = [self._source] if self._image is None else [self._source, self._image]
        masks = [mask for s in sources if (mask := s.valid(window)) is not None]
        return np.logical_and.reduce(masks) if masks else None

    def _in_file(self, window: Window) -> np.ndarray:
        return class_numbers(self.name, self._source.read(window)[..., 0])


def open_labels(
    path: str,
    image: ImageSource,
    reduce_zero_label: bool = False,
    label_map: Mapping[int, int] | None = None,
) -> LabelWindows:
    """Open the labels of an image: a TIFF, PNG or NumPy file by windows, others decoded as a whole.

    For the arguments after the image, see :class:`LabelWindows`.

    If both have a place on the map, each pixel of the image has the label at its place. Pixels
    beyond the labels have no label.

    Raises:
        BadImageError: If the labels are missing or damaged, have another size than the image, or
            lie elsewhere on the map.
        UserError: See :class:`LabelWindows`.
    """
    source = open_image(path, _decoded, are_labels=True)
    try:
        source = laid_over(source, image)
    except UserError as error:
        raise BadImageError(LABELS_ELSEWHERE, str(error)) from None
    if source.shape[:2] != image.shape[:2]:
        (height, width), (rows, columns) = source.shape[:2], image.shape[:2]
        detail = f'{image.name} has {columns}x{rows} pixels, but {path} has {width}x{height}'
        raise BadImageError(LABELS_OF_OTHER_SIZE, detail)
    return LabelWindows(source, reduce_zero_label, label_map, image)


def _decoded(path: str) -> np.ndarray:
    """Decode a file whose format has no windows."""
    return decode_labels(LoadImage().read(path, LABELS_MISSING), path)
