"""What is read of images and their label images before anything is written."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.progress import track

from ...base.errors import UserError
from ..audit.examples import PIXELS, Examples
from ..transforms.decode import require_same_place
from .base import MAX_PRINTED, LabelError, named
from .color_table import in_words
from .image_bands import Header, common_bands, read_header
from .label_values import ColorsError, counted, read_label, stored_size, values_of
from .mask_classes import Classes, classes_of_colors, classes_of_numbers
from .mask_pairs import Pair, Pairs

MAX_SIDE = 2048  # pixels; of larger images, windows are trained on


@dataclass
class Masks:
    """What has been read of the pairs in two folders.

    Attributes:
        pairs: The pairs.
        classes: What the values in the label images mean.
        headers: The header of each image.
        common: The header of images that are no RGB images, or None.
        counts: The number of pixels of each value in each label image.
        are_plain: Whether all label images hold numbers in one band.
    """

    pairs: Pairs
    classes: Classes
    headers: dict[Path, Header]
    common: Header | None
    counts: dict[Path, dict[int, int]]
    are_plain: bool

    @property
    def all_pairs(self) -> list[Pair]:
        return [pair for pairs in self.pairs.splits.values() for pair in pairs]

    @property
    def are_scenes(self) -> bool:
        return max(max(header.size) for header in self.headers.values()) > MAX_SIDE

    @cached_property
    def examples(self) -> dict[str, Examples]:
        """The number of pixels of each class in the labels of each split."""
        return {split: self._examples(pairs) for split, pairs in self.pairs.splits.items()}

    def _examples(self, pairs: Sequence[Pair]) -> Examples:
        counts = [self.classes.counts(self.counts[pair.label]) for pair in pairs]
        first, *others = [Examples.of_counts(PIXELS, of_label) for of_label in counts]
        return sum(others, first)

    @property
    def stay(self) -> bool:
        """Whether the label images are used where they are."""
        ends = {pair.end for pair in self.all_pairs}
        return self.are_plain and self.classes.as_stored and len(ends) == 1 and None not in ends


def read_masks(
    pairs: Pairs,
    table: Mapping[int, str] | None,
    colors: Path | None,
    names: Sequence[str] | None,
    reduces_zero: bool,
    skip_bad: bool,
) -> Masks:
    """Read the headers of the images and the label images, and leave out pairs that cannot be used.

    Args:
        pairs: The pairs; those that are left out are removed.
        table: The class of each color, or None: the labels hold numbers.
        colors: The file of the table.
        names: The classes, see :func:`.convert_masks`.
        reduces_zero: Whether 0 is unlabeled.
        skip_bad: Whether pairs may be left out.

    Raises:
        UserError: If a pair cannot be used, unless it is left out, or the values are no classes.
    """
    headers, counts, are_plain = {}, {}, True
    listed = [pair for of_split in pairs.splits.values() for pair in of_split]
    for pair in track(listed, 'Reading', console=Console(stderr=True)):
        with pairs.problems.noted(pair.label):
            size = stored_size(pair.label)
            with named(pair.image):
                header = read_header(pair.image, size)
            if header.size != size:
                raise LabelError(
                    f'{pair.label}: {size[0]}x{size[1]} pixels, but {pair.image} has '
                    f'{header.size[0]}x{header.size[1]}: write the labels in the size of the image'
                )
            require_same_place(str(pair.label), str(pair.image), size[::-1])
            label = read_label(pair.label, table is not None)
            try:
                of_values = counted(values_of(label, pair.label))
            except LabelError:
                raise
            except UserError as error:  # which names the file
                raise LabelError(str(error)) from None
            headers[pair.image], counts[pair.label] = header, of_values
            are_plain &= table is None and label.pixels.ndim == 2
    _report(pairs, skip_bad)
    for split, of_split in [*pairs.splits.items()]:
        pairs.splits[split] = [pair for pair in of_split if pair.image in headers]
        if not pairs.splits[split]:
            del pairs.splits[split]
    if not counts:
        raise UserError(f'{pairs.images}: no image and its label can be used')
    pairs.hold_out()
    if table is None:
        classes = classes_of_numbers(counts, names, reduces_zero)
    else:
        classes = classes_of_colors(counts, table, names, colors)
    return Masks(pairs, classes, headers, common_bands(headers), counts, are_plain)


def _report(pairs: Pairs, skip_bad: bool) -> None:
    """Print the problems, or raise a UserError unless they are skipped."""
    problems = pairs.problems
    of_colors = [problem for problem in problems if isinstance(problem, ColorsError)]
    if len(of_colors) == sum(map(len, pairs.splits.values())):
        raise _without_colors(pairs, of_colors)
    problems.print_all(skip_bad)
    if problems and not skip_bad:
        raise UserError(
            f'{len(problems)} images or labels cannot be used, such as {problems[0]}; nothing was '
            'written: fix them, or leave them out with --skip-bad'
        )
    pairs.remarks['Problems; the images or labels are left out'] = len(problems)


def _without_colors(pairs: Pairs, problems: Sequence[ColorsError]) -> UserError:
    """Print the lines of a file for ``--colors``, without the names."""
    counts: Counter[int] = Counter()
    for problem in problems:
        counts.update(problem.counts)
    print('The colors, for a file that names their classes:')
    for color, _ in counts.most_common(MAX_PRINTED):
        print(f'{in_words(color)} NAME')
    if len(counts) > MAX_PRINTED:
        print('... and more: are these images instead of labels?')
    return UserError(
        f'{pairs.labels}: all {len(problems)} label images have colors instead of numbers: write '
        'the lines above to a file, with the name of each class instead of NAME, and pass --colors '
        'FILE; nothing was written'
    )
