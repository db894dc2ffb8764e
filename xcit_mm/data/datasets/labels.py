"""The rules for the labels of a segmentation, for runs and for the check of a dataset."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from ...base.errors import UserError

Labels = TypeVar('Labels')  # an array of NumPy or a tensor

IGNORED = 255  # mmseg's label of a pixel without a class
MAX_LABEL = 2**16 - 1  # in a file


class LabelRule(NamedTuple):
    """A label is one of the classes, counted from 0, or the number that the loss ignores."""

    num_classes: int
    ignore_index: int

    @classmethod
    def of_head(cls, num_classes: int, out_channels: int | None, ignore_index: int) -> 'LabelRule':
        # A head with one output tells two classes apart by a probability.
        return cls(max(num_classes, 2) if out_channels == 1 else num_classes, ignore_index)

    def broken_by(self, labels: Labels) -> Labels:
        """Return the labels that are neither, in one dimension."""
        is_class = (labels >= 0) & (labels < self.num_classes)
        return labels[~is_class & (labels != self.ignore_index)]

    def refusal(self, label: int, file: str, reduce_zero_label: bool) -> str:
        """Return the sentence that refuses a label of a file, with the numbers of the file."""
        first = int(reduce_zero_label)
        return (
            f'{file}: the label {label + first} is outside {first}..'
            f'{self.num_classes - 1 + first}, the {self.num_classes} classes of the config; '
            f'{self.ignore_index} is ignored'
        )


def of_color_image(file: str, shape: tuple[int, ...]) -> str:
    """Return the sentence that refuses a file of labels with several channels."""
    return (
        f'{file}: the labels have the shape {shape}, like a color image: write the class number of '
        'each pixel instead'
    )


def class_numbers(file: str, values: np.ndarray) -> np.ndarray:
    """Return the values of a file of labels as indices.

    Raises:
        UserError: If one is not a whole number from 0 to 65535.
    """
    are_whole = values.dtype.kind in 'bui'
    if not are_whole and not (values.dtype.kind == 'f' and (values == np.floor(values)).all()):
        raise UserError(
            f'{file}: the labels have the type {values.dtype}: write the class number of each '
            'pixel as an integer instead'
        )
    may_be_wrong = values.dtype.kind in 'if' or values.dtype.itemsize > 2
    for label in (values.min(), values.max()) if may_be_wrong else ():
        if not 0 <= label <= MAX_LABEL:
            raise UserError(
                f'{file}: the label {label:g} is outside 0..{MAX_LABEL}: write the class number of '
                'each pixel instead'
            )
    return values.astype(np.intp)


def new_labels(
    itemsize: int, reduce_zero_label: bool, label_map: Mapping[int, int] | None
) -> np.ndarray:
    """Return the class of each label of a file, by the rules of mmseg's ``LoadAnnotations``.

    Args:
        itemsize: The bytes of a label in the file.
        reduce_zero_label: Whether 0 is ignored, and the first class is 1.
        label_map: The new number of each label, if the classes of the dataset differ from the
            classes of the file.
    """
    labels = np.arange(MAX_LABEL + 1 if itemsize > 1 else 256)
    if reduce_zero_label:
        labels = np.where(np.isin(labels, (0, IGNORED)), IGNORED, labels - 1)
    mapped = labels.copy()
    for old, new in (label_map or {}).items():
        mapped[labels == old] = new
    return mapped.astype(np.uint16 if itemsize > 1 else np.uint8)
