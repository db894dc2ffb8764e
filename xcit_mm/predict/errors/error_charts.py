"""A picture of the confusion matrix of a model, and of the costs of a detector's errors."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import one_line
from ...base.files import write_whole
from ...base.fonts import chart_fonts
from .error_tables import ErrorTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CLASSES = 30  # in a picture
MAX_NAME = 24  # characters
MAX_DIGITS = 10_000  # a larger number of a cell is written as 12k
DPI = 100


def draw_errors(tables: ErrorTables, path: Path) -> None:
    """Draw the confusion matrix and the costs of errors as PNG, written whole or not at all.

    If there are more than 30 classes, the picture shows the most confused classes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    chosen = _most_confused(tables)
    side = 2.4 + 0.42 * len(chosen)
    width = 4.8 * bool(tables.costs)
    ratios = [side + 1.4, width] if width else [1]
    with rc_context(chart_fonts(tables.names)), write_whole(path) as file:
        figure = Figure(figsize=(side + 1.4 + width, max(3.6, side)), layout='constrained')
        axes = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
        _draw_confusion(axes[0], tables, chosen)
        if tables.costs:
            _draw_costs(axes[1], tables)
        figure.savefig(file, format='png', dpi=DPI)


def _most_confused(tables: ErrorTables) -> np.ndarray:
    """Return the rows to draw: all of them, or the most confused classes and the rest."""
    number = len(tables.classes)
    if number <= MAX_CLASSES:
        return np.arange(len(tables.names))
    wrong = tables.confusion * (1 - np.eye(len(tables.names), dtype=int))
    most = np.argsort(-(wrong.sum(0) + wrong.sum(1))[:number], kind='stable')[:MAX_CLASSES]
    return np.append(np.sort(most), range(number, len(tables.names)))


def _draw_confusion(axes: 'Axes', tables: ErrorTables, chosen: np.ndarray) -> None:
    counts = tables.confusion[np.ix_(chosen, chosen)]
    totals = tables.confusion.sum(1)[chosen, None]
    shares = counts / np.maximum(totals, 1)
    axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = 'white' if shares[row, column] > 0.5 else 'black'
            style = dict(ha='center', va='center', fontsize=8, color=color)
            axes.text(column, row, _short(count), **style)
    names = [_name(tables.names[i]) for i in chosen]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel('predicted')
    axes.set_ylabel('annotated')
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    title = f'Confusions, {tables.of}'
    if len(tables.classes) > MAX_CLASSES:
        title += f', the {MAX_CLASSES} most confused classes'
    if tables.score_thr is not None:
        title += f', score ≥ {tables.score_thr:g}'
    axes.set_title(title, fontsize=11)


def _draw_costs(axes: 'Axes', tables: ErrorTables) -> None:
    names = [row['error'] for row in tables.costs]
    values = [row['cost in AP50'] for row in tables.costs]
    bars = axes.barh(names, values, color=['C0'] * (len(names) - 2) + ['C7'] * 2)
    texts = [
        f'{value:.3f} ({row["number"]:,})' for row, value in zip(tables.costs, values, strict=True)
    ]
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xlim(0, 1.35 * max(*values, 0.01))
    axes.invert_yaxis()
    axes.tick_params(axis='y', length=0)
    axes.spines[['top', 'right']].set_visible(False)
    axes.set_xlabel('gain in AP50 without these errors (number of them)')
    axes.set_title(f'Costs of errors, {tables.of}', fontsize=11)


def _short(count: int) -> str:
    if count < MAX_DIGITS:
        return str(count)
    rounded = float(f'{count:.3g}')  # 999,999 is 1M
    power = (len(f'{rounded:.0f}') - 1) // 3
    return f'{rounded / 1000**power:.3g}{("", "k", "M", "G", "T", "P")[power]}'


def _name(name: str) -> str:
    """Return a name that is short enough and that matplotlib does not read as a formula."""
    name = one_line(name)
    name = name if len(name) <= MAX_NAME else f'{name[: MAX_NAME - 3]}...'
    return name.replace('$', r'\$')
