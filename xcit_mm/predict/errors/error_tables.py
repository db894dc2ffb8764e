"""Tables of the errors of a model, as CSV files."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...base.files import write_whole

CONFUSION, CLASSES, COUNTS = 'confusion.csv', 'classes.csv', 'counts.csv'
COSTS = 'errors.csv'
MAX_ROWS = 2**20  # of a table in a spreadsheet


@dataclass(frozen=True)
class ErrorTables:
    """The errors of a model on a dataset with K classes.

    Attributes:
        of: What is counted: 'boxes', 'masks', 'pixels' or 'images'. It is the name of the folder.
        classes: Names of the classes.
        rest: The name of the last row and column, for everything outside the classes; '' if there
            is no such row.
        confusion: (K, K) or with the rest (K + 1, K + 1), numbers by annotated class (rows) and
            predicted class (columns).
        images: For each image its name and the annotated, predicted and correct numbers by class,
            without classes that have none.
        score_thr: The score from which predictions are counted; None for models without scores.
        by_class: Further columns of ``classes.csv``: K values by the name of the column.
        costs: The rows of ``errors.csv``, the errors of a detector; None for other models.
    """

    of: str
    classes: tuple[str, ...]
    rest: str
    confusion: np.ndarray
    images: list[tuple[str, Mapping[int, tuple[int, int, int]]]]
    score_thr: float | None = None
    by_class: Mapping[str, Sequence[float]] = field(default_factory=dict)
    costs: list[dict[str, Any]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows and columns of ``confusion``."""
        return (*self.classes, self.rest) if self.rest else self.classes

    def rows_of_classes(self) -> list[dict[str, Any]]:
        """Return the rows of ``classes.csv``, with NaN for what is not defined."""
        number = len(self.classes)
        annotated, predicted = self.confusion.sum(1)[:number], self.confusion.sum(0)[:number]
        correct = self.confusion.diagonal()[:number]
        with np.errstate(invalid='ignore'):
            columns = dict(
                annotated=annotated,
                predicted=predicted,
                TP=correct,
                FP=predicted - correct,
                FN=annotated - correct,
                precision=correct / predicted,
                recall=correct / annotated,
                F1=2 * correct / (predicted + annotated),
                **self.by_class,
            )
        return [
            {'class': name} | {title: values[i] for title, values in columns.items()}
            for i, name in enumerate(self.classes)
        ]

    def write(self, folder: Path) -> None:
        """Write the tables into a folder; each file is whole or absent."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = ([name, *row] for name, row in zip(self.names, self.confusion, strict=True))
        write_csv(folder / CONFUSION, ['annotated / predicted', *self.names], rows)
        write_dicts(folder / CLASSES, self.rows_of_classes())
        names = ('annotated', 'predicted', 'correct')
        write_counts(folder / COUNTS, self.classes, names, self.images)
        if self.costs is not None:
            write_dicts(folder / COSTS, self.costs)


def write_counts(
    path: Path,
    classes: Sequence[str],
    columns: Sequence[str],
    images: Sequence[tuple[str, Mapping[int, Sequence[float]]]],
) -> None:
    """Write numbers by image and class, one row for each pair.

    Numbers that an image lacks for a class are 0. If there would be more than a million rows, which
    no spreadsheet reads, the rows without a number above 0 are left out.

    Args:
        path: The CSV file.
        classes: Names of the classes.
        columns: What the numbers are.
        images: The name of each image and its numbers by class.
    """
    has_all, none = len(images) * len(classes) < MAX_ROWS, (0,) * len(columns)
    rows = (
        [image, name, *values]
        for image, numbers in images
        for name, values in ((name, numbers.get(i, none)) for i, name in enumerate(classes))
        if has_all or any(value > 0 for value in values)  # NaN is not
    )
    write_csv(path, ['image', 'class', *columns], rows)


def write_dicts(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with the columns of the first row."""
    write_csv(path, list(rows[0]), (list(row.values()) for row in rows))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, whole or not at all. NaN becomes an empty cell."""
    with write_whole(path, 'w') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _decimal(value: float) -> str:
    """Return a number with six digits, or with all of its digits before the point."""
    if abs(value) >= 1e5:
        return f'{value:.0f}'
    return np.format_float_positional(value + 0.0, 6, fractional=False, trim='-')


def _cell(value: Any) -> Any:
    if isinstance(value, float):  # also of NumPy
        return '' if math.isnan(value) else _decimal(value)
    return value
