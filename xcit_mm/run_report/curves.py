"""Losses, learning rate and metrics of runs as plots."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import write_whole
from .metrics import groups
from .reading import Line, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How a curve is drawn: faintly below its running mean, as it is, or with a mark at each value.
NOISY, PLAIN, POINTS = 'noisy', 'plain', 'points'
LOSS, LEARNING_RATE, GRADIENT = 'loss', 'lr', 'grad_norm'
SIZE = (5.2, 3.4)  # of a plot, inches
MAX_COLUMNS = 3  # of plots in one picture
MARGIN = 1.03  # on the right
MAX_POINTS = 1000  # of a curve; of more, means are drawn
SMOOTH_FROM = 50  # points; a curve of fewer can be seen
SMOOTHED_SHARE = 25  # the mean is over this part of the curve
NUM_COLORS = 10  # then the lines are dashed
LOG_RATIO = 30  # of the largest to the smallest loss, where the axis is logarithmic
LEGEND_COLUMNS = 3
SMALL = dict(fontsize=8, frameon=False, handlelength=1.5, columnspacing=1.2)
NUM_OF_GROUP = 3  # metrics of one run in one plot


@dataclass
class Curve:
    """Values over iterations; NaN where one was not finite.

    Attributes:
        label: What it is of.
        number: Its colour: of several runs the same in every plot.
        iters: Where its values are.
        values: One for each.
    """

    label: str
    number: int
    iters: list[float]
    values: list[float]


@dataclass
class Plot:
    """What one pair of axes shows.

    Attributes:
        title: Above it.
        kind: NOISY, PLAIN or POINTS.
        curves: One or several.
        ylabel: Beside it.
    """

    title: str
    kind: str
    curves: list[Curve]
    ylabel: str = ''


def plots(runs: Sequence[Run]) -> list[Plot]:
    """Choose what to show: of one run more at once, of several the same side by side."""
    found = [Plot('Loss', NOISY, _of_runs(runs, LOSS))]
    for group in groups(runs):
        if len(runs) == 1:
            labels = list(group.labels.items())[:NUM_OF_GROUP]
            named = enumerate(labels)
            curves = [_curve(runs[0].metrics, *names, number) for number, names in named]
            ylabel = ''
        else:
            curves = [
                _curve(run.metrics, group.first, run.name, number)
                for number, run in enumerate(runs)
            ]
            ylabel = group.labels[group.first]
        found.append(Plot(group.title, POINTS, curves, ylabel))
    found.append(Plot('Learning rate', PLAIN, _of_runs(runs, LEARNING_RATE)))
    parts = _parts_of_loss(runs)
    if len(runs) == 1:
        curves = [_curve(runs[0].losses, name, name, i) for i, name in enumerate(parts)]
        found.append(Plot('Parts of the loss', NOISY, curves))
    else:
        found += [Plot(name, NOISY, _of_runs(runs, name)) for name in parts]
    found.append(Plot('Norm of the gradient', NOISY, _of_runs(runs, GRADIENT)))
    for plot in found:
        plot.curves = [curve for curve in plot.curves if curve.iters]
    return [plot for plot in found if plot.curves]


def draw_png(runs: Sequence[Run], path: Path) -> None:
    """Draw all plots into one picture, whole or not at all."""
    from matplotlib.figure import Figure

    shown = plots(runs)
    num_columns = max(1, min(MAX_COLUMNS, len(shown)))
    num_rows = max(1, -(-len(shown) // num_columns))
    size = SIZE[0] * num_columns, SIZE[1] * num_rows
    figure = Figure(figsize=size, layout='constrained')
    axes = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for plot, place in zip(shown, axes, strict=False):
        _draw(plot, place)
    for place in axes[len(shown) :]:
        place.set_axis_off()
    with write_whole(path) as file:
        figure.savefig(file, format='png', dpi=110)


def svg(plot: Plot) -> bytes:
    """One plot as a vector graphic, with its letters as outlines: it needs no font."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout='constrained')
    _draw(plot, figure.subplots())
    file = io.BytesIO()
    figure.savefig(file, format='svg', metadata=dict(Date=None, Creator=None))
    return file.getvalue()


def _of_runs(runs: Sequence[Run], name: str) -> list[Curve]:
    return [_curve(run.losses, name, run.name, number) for number, run in enumerate(runs)]


def _curve(lines: Sequence[Line], name: str, label: str, number: int) -> Curve:
    points = [(line['iter'], line[name]) for line in lines if name in line]
    return Curve(label, number, [x for x, _ in points], [y for _, y in points])


def _parts_of_loss(runs: Sequence[Run]) -> list[str]:
    """Mmdet's loss_cls, mmseg's decode.loss_ce; none where the loss has one part alone."""
    names = dict.fromkeys(name for run in runs for line in run.losses for name in line)
    parts = [name for name in names if LOSS in name and name != LOSS]
    return parts if len(parts) > 1 else []


def _draw(plot: Plot, axes: 'Axes') -> None:
    for curve in plot.curves:
        style = dict(color=f'C{curve.number % NUM_COLORS}', label=_as_is(curve.label))
        style['linestyle'] = '-' if curve.number < NUM_COLORS else '--'
        if plot.kind == NOISY:
            _draw_noisy(curve, axes, style)
        else:
            marks = dict(marker='o', markersize=4) if plot.kind == POINTS else {}
            axes.plot(curve.iters, curve.values, **marks, **style)
    values = np.concatenate([curve.values for curve in plot.curves])
    values = values[np.isfinite(values)]
    if plot.kind == NOISY and len(values) and 0 < LOG_RATIO * values.min() < values.max():
        axes.set_yscale('log')
    else:
        axes.ticklabel_format(axis='y', scilimits=(-3, 4))
    last = max(curve.iters[-1] for curve in plot.curves)
    axes.set_xlim(0, MARGIN * max(last, 1))  # a validation can be all there is, at 0
    axes.set_title(_as_is(plot.title), fontsize=11)
    axes.set_xlabel('iteration')
    axes.set_ylabel(_as_is(plot.ylabel))
    axes.grid(alpha=0.3)
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
    if len(plot.curves) > 1:
        axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=LEGEND_COLUMNS, **SMALL)


def _as_is(text: str) -> str:
    """Without what matplotlib makes of $ (a formula) and of _ at the beginning (no legend)."""
    text = text.replace('$', r'\$')
    return f' {text}' if text.startswith('_') else text


def _draw_noisy(curve: Curve, axes: 'Axes', style: dict) -> None:
    """The values faintly and their running mean; red marks at the foot where one is not finite."""
    iters, values = np.array(curve.iters), np.array(curve.values)
    bad = iters[~np.isfinite(values)]
    if len(bad):
        feet = dict(transform=axes.get_xaxis_transform(), clip_on=False, in_layout=False)
        axes.plot(bad, np.zeros_like(bad), 'r|', markersize=10, **feet)
    iters, values = _thinned(iters, values)
    if len(values) < SMOOTH_FROM:
        axes.plot(iters, values, marker='.' if len(values) < 2 else None, **style)
        return
    axes.plot(iters, values, color=style['color'], alpha=0.25, lw=0.8)
    axes.plot(iters, _smoothed(values), **style)


def _thinned(iters: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours, where the points are more than can be told apart."""
    size = -(-len(values) // MAX_POINTS)
    if size < 2:
        return iters, values
    starts = np.arange(0, len(values), size)
    counts = np.diff([*starts, len(values)])
    return iters[starts + counts - 1], np.add.reduceat(values, starts) / counts


def _smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of the finite values around each."""
    window = np.ones(len(values) // SMOOTHED_SHARE | 1)
    is_finite = np.isfinite(values)
    total = np.convolve(np.where(is_finite, values, 0), window, 'same')
    count = np.convolve(is_finite, window, 'same')
    return np.divide(total, count, out=np.full(len(values), np.nan), where=is_finite & (count > 0))
