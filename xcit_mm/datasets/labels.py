"""The rule for the labels of a segmentation, for runs and for the check of a dataset."""

from typing import NamedTuple, TypeVar

Labels = TypeVar('Labels')  # an array of NumPy or a tensor


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
