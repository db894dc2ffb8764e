"""What the values in label images mean: the number of each class, or a color."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ...base.files import read_regular
from ..datasets.labels import IGNORED as IGNORED_NUMBER
from ..transforms.decode import JPEG, MAX_BYTES
from .base import IGNORED
from .color_table import in_words
from .label_values import in_short

MAX_CLASS = 254  # 255 is ignored
MASKS = [0, 255], [0, 2**16 - 1]  # the values of a mask of two classes, of 8 and of 16 bits
# Levels of gray, such as 0 and 128, have a larger value, and larger steps, than numbers of classes.
GRAY, STEP = 64, 8
# Masks with soft edges have many values, most of whose pixels are nearly black or white.
MIN_SOFT, NEAR, BRIGHT, SHARE = 17, 8, 200, 0.7


@dataclass(frozen=True)
class Classes:
    """The classes of a dataset of label images.

    Attributes:
        names: Their names.
        numbers: The class of each value in the files, 255 if it is ignored.
        as_stored: Whether the files hold the numbers as a training reads them.
        reduces_zero: Whether a training counts the classes of the files from 1, and ignores 0.
        palette: A color for each class, or ().
        remark: What the values have become, or ''.
    """

    names: list[str]
    numbers: Mapping[int, int]
    as_stored: bool
    reduces_zero: bool = False
    palette: list[tuple[int, int, int]] = field(default_factory=list)
    remark: str = ''

    def counts(self, of_values: Mapping[int, int]) -> np.ndarray:
        """Return the number of pixels of each class, given the number of pixels of each value."""
        counts = np.zeros(IGNORED_NUMBER + 1, np.int64)
        for value, number in of_values.items():
            counts[self.numbers[value]] += number
        return counts[: len(self.names)]

    def of_label(self, values: np.ndarray) -> np.ndarray:
        """Return the class of each value, uint8."""
        known = np.array(sorted(self.numbers))
        classes = np.array([self.numbers[value] for value in known.tolist()], np.uint8)
        return classes[np.searchsorted(known, values)]


def classes_of_numbers(
    counts: Mapping[Path, Mapping[int, int]], names: Sequence[str] | None, reduces_zero: bool
) -> Classes:
    """Return what the numbers in label images mean.

    255 is ignored, except in masks of 0 and 255, and between other levels of gray. Numbers that do
    not follow each other, such as 0 and 100, become classes in their order.

    Args:
        counts: The number of pixels of each value in each file.
        names: The names of the classes, or None: ``class_0``, ``class_1`` and so on.
        reduces_zero: Whether 0 is unlabeled, too, and 1 is the first class.

    Raises:
        UserError: If there is a single class, there are more than names, or the values are no
            numbers of classes.
    """
    total: Counter[int] = Counter()
    for of_file in counts.values():
        total.update(of_file)
    if names is None or len(names) <= MAX_CLASS // 2:
        _require_hard_edges(counts, total)
    own = _own_values(sorted(total), None if names is None else len(names), reduces_zero)
    if len(own) < 2:
        raise _single_class(counts, own, reduces_zero)
    _require_few(names or own)
    first = int(reduces_zero)
    last = first + len(names or own) - 1
    is_dense = first <= own[0] and own[-1] <= min(last, MAX_CLASS)
    if names is None:
        if own[-1] > IGNORED_NUMBER and own not in MASKS:
            raise _no_class(counts, own)
        names = [f'class_{value}' for value in ((0, 1) if own in MASKS else own)]
    elif not is_dense and len(own) != len(names):
        raise _more_values(counts, own, names, reduces_zero)
    found = range(first, last + 1) if is_dense else own
    numbers = dict.fromkeys(total, IGNORED_NUMBER)
    numbers |= {value: number for number, value in enumerate(found)}
    remark = ''
    if not is_dense:
        pairs = [f'{value} as {number}' for number, value in enumerate(own)]
        remark = f'New label images are written, with {in_short(pairs)}'
    return Classes([*names], numbers, is_dense, reduces_zero and is_dense, remark=remark)


def _own_values(
    values: Sequence[int], num_classes: int | None, reduces_zero: bool
) -> Sequence[int]:
    """Return the values of classes among the sorted values of label images."""
    if values in MASKS and not reduces_zero:
        return values
    ignored = {0, IGNORED_NUMBER} if reduces_zero else {IGNORED_NUMBER}
    own = [value for value in values if value not in ignored]
    if IGNORED_NUMBER in values and _are_grays(own) and num_classes in (None, len(own) + 1):
        own.append(IGNORED_NUMBER)
    return own


def classes_of_colors(
    counts: Mapping[Path, Mapping[int, int]],
    table: Mapping[int, str],
    names: Sequence[str] | None,
    file: Path,
) -> Classes:
    """Return the classes of colors, which a table names.

    Args:
        counts: The number of pixels of each color in each file.
        table: The class of each color.
        names: The classes in their order. Default: the order of the table.
        file: The file of the table.

    Raises:
        UserError: If a label image has another color, or ``names`` are other classes.
    """
    for path, of_file in counts.items():
        if others := [color for color in of_file if color not in table]:
            raise _other_colors(path, of_file, others, file)
    own = [name for name in dict.fromkeys(table.values()) if name != IGNORED]
    if names is not None and {*names} != {*own}:
        other = next(iter({*own} ^ {*names}))
        where = 'not in --classes' if other in own else f'not in {file}'
        raise UserError(f'the class {other} is {where}: list the same classes in both')
    names = [*(names or own)]
    _require_few(names)
    numbers = {
        color: IGNORED_NUMBER if name == IGNORED else names.index(name)
        for color, name in table.items()
    }
    first = {name: color for color, name in reversed(table.items())}
    palette = [tuple(first[name].to_bytes(3, 'big')) for name in names]
    remark = 'New label images are written, with the number of the class of each color'
    return Classes(names, numbers, False, palette=palette, remark=remark)


def _other_colors(
    path: Path, of_file: Mapping[int, int], others: Sequence[int], file: Path
) -> UserError:
    most = max(others, key=lambda color: of_file[color])
    remedy = 'add all of them'
    if read_regular(path, MAX_BYTES).startswith(JPEG):
        remedy = (
            'it is a JPEG file, whose compression changes colors: save the labels as PNG files '
            'from their source'
        )
    return UserError(
        f'{path} has {len(others)} color{"s" * (len(others) != 1)} that {file} lacks, such as '
        f'{in_words(most)} ({of_file[most]} pixels): {remedy}'
    )


def _are_grays(values: Sequence[int]) -> bool:
    return bool(values) and GRAY <= values[-1] <= MAX_CLASS and len(values) * STEP < values[-1]


def _require_few(classes: Sequence[object]) -> None:
    if len(classes) > MAX_CLASS + 1:
        raise UserError(
            f'the labels have {len(classes)} classes, but at most {MAX_CLASS + 1} can be written: '
            'are they numbers of objects? Write the number of the class of each pixel instead'
        )


def _require_hard_edges(counts: Mapping[Path, Mapping[int, int]], total: Mapping[int, int]) -> None:
    """Refuse masks whose edges have many levels between black and white."""
    values = [value for value in total if value < IGNORED_NUMBER]
    is_wide = len(values) >= MIN_SOFT and max(values) > BRIGHT and max(total) == IGNORED_NUMBER
    ends = [n for v, n in total.items() if v <= NEAR or v >= IGNORED_NUMBER - NEAR]
    if is_wide and sum(ends) >= SHARE * sum(total.values()):
        file = max(counts, key=lambda path: len(counts[path]))
        raise UserError(
            f'{file}: a mask with soft edges, which has {len(counts[file])} values from '
            f'{min(counts[file])} to {max(counts[file])}: set values below 128 to 0 and the others '
            'to 255, and save it as a PNG file'
        )


def _single_class(
    counts: Mapping[Path, Mapping[int, int]], own: Sequence[int], reduces_zero: bool
) -> UserError:
    which = f'{own[0]}' if own else 'none'
    ignored = f'0 and {IGNORED_NUMBER}' if reduces_zero else f'{IGNORED_NUMBER}'
    return UserError(
        f'the labels in {next(iter(counts)).parent} have a single class ({which}; {ignored} is '
        'ignored), so nothing can be learned: write the background as a class of its own, for '
        'example as 0 and the objects as 1, or as 0 and 255'
    )


def _no_class(counts: Mapping[Path, Mapping[int, int]], own: Sequence[int]) -> UserError:
    file = next(file for file, of_file in counts.items() if own[-1] in of_file)
    return UserError(
        f'{file}: the value {own[-1]} is not a number of a class, 0 to {MAX_CLASS}: if it is the '
        'number of an object, write the number of its class instead; otherwise name the classes '
        f'of all {len(own)} values in their order with --classes'
    )


def _more_values(
    counts: Mapping[Path, Mapping[int, int]],
    own: Sequence[int],
    names: Sequence[str],
    reduces_zero: bool,
) -> UserError:
    first = int(reduces_zero)
    wrong = next(v for v in own if not first <= v < first + len(names))
    file = next(file for file, of_file in counts.items() if wrong in of_file)
    zero = ''
    if own[0] == 0 and len(own) == len(names) + 1 and not reduces_zero:
        zero = ', or, if 0 is unlabeled, pass --reduce-zero-label'
    return UserError(
        f'{file}: the value {wrong} is not a class: the labels have the {len(own)} values '
        f'{in_short(map(str, own))}, but --classes names {len(names)}: name a class for each '
        f'value{zero}'
    )
