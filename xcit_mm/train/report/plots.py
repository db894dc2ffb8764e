"""Plots of losses, learning rate and metrics of runs over their iterations."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ...base.errors import one_line
from ...base.files import write_whole
from ...base.fonts import chart_fonts
from .reading import Run
from .titles import ACCURACIES, KINDS, OF_CLASS, OF_PIXELS, PANOPTIC, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAIN_METRICS = {
    'coco_panoptic/PQ': 'Panoptic quality, percent',
    'coco/bbox_mAP': 'Box AP',
    'coco/segm_mAP': 'Mask AP',
    'mIoU': 'Mean IoU, percent',
    'accuracy/top1': 'Top-1 accuracy, percent',
    'knn/top1': 'k-NN accuracy, percent',
}
TITLES = MAIN_METRICS | dict(
    loss='Loss',
    lr='Learning rate',
    grad_norm='Norm of the gradient',
    teacher_entropy='Entropy of the teacher, nats',
    feature_spread='Spread of the features',
    momentum='Momentum of the teacher',
)
BY_CLASS = *(kind + item for kind in KINDS for item in OF_CLASS), *OF_PIXELS
# How names begin: AP50 and so on.
IN_TABLE_ONLY = *MAIN_METRICS, *ACCURACIES, PANOPTIC, 'mAcc', 'aAcc', 'iter', *BY_CLASS
FROM_ZERO = 'teacher_entropy', 'feature_spread'  # zero is a collapse
NO_CURVES = 'iter', 'epoch', 'loss', 'lr', 'grad_norm'  # which have a place of their own, or none
# Of other metrics, of parts of the loss, and of other numbers; an evaluation by class has hundreds.
MAX_PLOTS = 12
MAX_POINTS = 1000  # of a curve; a longer one is drawn as means of neighbors
MAX_MARKERS = 30
SMOOTHED_SHARE = 25  # a moving average is over this part of the curve


def choose_plots(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Choose the values to plot: the name of each, and whether it is in 'losses' or 'metrics'."""
    names = {
        source: dict.fromkeys(n for run in runs for line in getattr(run, source) for n in line)
        for source in ('losses', 'metrics')
    }
    other_metrics = [n for n in names['metrics'] if not n.startswith(IN_TABLE_ONLY)][:MAX_PLOTS]
    parts = [n for n in names['losses'] if 'loss' in n and n != 'loss'][:MAX_PLOTS]
    others = [n for n in names['losses'] if 'loss' not in n and n not in NO_CURVES][:MAX_PLOTS]
    parts = parts if len(parts) > 1 else []
    plots = [('loss', 'losses')]
    plots += [(name, 'metrics') for name in (*MAIN_METRICS, *other_metrics)]
    plots += [(name, 'losses') for name in (*others, 'lr', *parts, 'grad_norm')]
    return [(name, source) for name, source in plots if name in names[source]]


def draw_png(runs: Sequence[Run], path: Path) -> None:
    """Draw all plots into one picture. It is written as a whole or not at all."""
    with write_whole(path) as file:
        draw(choose_plots(runs), runs, file, 'png')


def draw(plots: Sequence[tuple[str, str]], runs: Sequence[Run], file: IO[bytes], kind: str) -> None:
    """Draw plots into a 'png' or 'svg' picture, at most three in a row."""
    from matplotlib import rc_context

    names = [run.name for run in runs] + [name for name, _ in plots]
    with rc_context(chart_fonts(names)):
        _draw(plots, runs, file, kind)


def _draw(
    plots: Sequence[tuple[str, str]], runs: Sequence[Run], file: IO[bytes], kind: str
) -> None:
    from matplotlib.figure import Figure

    columns = max(1, min(3, len(plots)))
    rows = max(1, math.ceil(len(plots) / columns))
    figure = Figure(figsize=(5.2 * columns, 3.4 * rows), layout='constrained')
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (name, source) in zip(all_axes, plots, strict=False):
        for number, run in enumerate(runs):
            lines = getattr(run, source)
            points = [(line['iter'], line[name]) for line in lines if name in line]
            if points:
                style = dict(color=f'C{number % 10}', linestyle='-' if number < 10 else '--')
                is_noisy = source == 'losses' and name != 'lr'
                _draw_curve(axes, np.array(points), is_noisy, label=_literal(run.name), **style)
        axes.set_title(_literal(TITLES.get(name) or title(name)), fontsize=11)
        axes.set_xlim(left=0)
        if name in FROM_ZERO:
            axes.set_ylim(bottom=0)
        axes.set_xlabel('iteration')
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
        if len(runs) > 1:
            below = dict(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=3)
            axes.legend(**below, fontsize=8, frameon=False)
    for axes in all_axes[len(plots) :]:
        axes.set_axis_off()
    figure.savefig(file, format=kind, dpi=110)


def _draw_curve(axes: 'Axes', points: np.ndarray, is_noisy: bool, color: str, **style) -> None:
    size = math.ceil(len(points) / MAX_POINTS)
    parts = np.array_split(points, range(size, len(points), size))
    iters, values = np.array([part.mean(axis=0) for part in parts]).T
    is_finite = np.isfinite(values)
    at_foot = axes.get_xaxis_transform()  # y from 0 to 1
    axes.vlines(iters[~is_finite], 0, 0.04, color='red', transform=at_foot)
    if is_noisy:
        axes.plot(iters, values, color=color, alpha=0.25, linewidth=0.8)
        window = np.ones(len(values) // SMOOTHED_SHARE | 1)
        sums = np.convolve(np.where(is_finite, values, 0), window, 'same')
        counts = np.convolve(is_finite, window, 'same')
        values = np.where(is_finite, sums / np.maximum(counts, 1), np.nan)
    marker = '.' if len(values) <= MAX_MARKERS else ''
    axes.plot(iters, values, color=color, marker=marker, **style)


def _literal(text: str) -> str:
    """Return text that matplotlib neither reads as a formula nor leaves out of a legend."""
    text = one_line(text).replace('$', r'\$')
    return f' {text}' if text.startswith('_') else text
