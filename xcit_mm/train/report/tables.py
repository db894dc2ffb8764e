"""The metrics of a run as a table for the log, and as JSON."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from mmengine.evaluator import Evaluator

from ...base.files import write_json
from .reading import NO_OBJECTS
from .titles import KINDS, OF_CLASS, OF_MMDET, OF_PIXELS, PRECISIONS, title

# The rows of a table with the names of their metrics, its columns, and the format of its figures.
BOXES_AND_MASKS = dict(boxes='coco/bbox_{}', masks='coco/segm_{}')
SEGMENTS = dict(all='coco_panoptic/{}', things='coco_panoptic/{}_th', stuff='coco_panoptic/{}_st')
COLUMNS = {item: name.removeprefix('AP ') for item, name in PRECISIONS.items()}
COLUMNS_BY_CLASS = {
    kind + item: f'{name.lower()} {precision}'
    for kind, name in KINDS.items()
    for item, precision in OF_CLASS.items()
}
TABLES_BY_CLASS = ((COLUMNS_BY_CLASS, '.3f'), (OF_PIXELS, '.2f'))
DETAILS = ('_mAP_75', '_mAP_s', '_mAP_m', '_mAP_l')  # the ends of names that a summary leaves out
MAX_IN_SUMMARY = 8
HEIGHTS = dict(heights='height/{}')
ERRORS = dict(MAE='MAE', RMSE='RMSE', delta1='delta1', step='step', step_inside='inside')
TABLES = (
    (HEIGHTS, ERRORS, '.3f'),
    (SEGMENTS, dict(PQ='PQ', SQ='SQ', RQ='RQ'), '.2f'),
    (BOXES_AND_MASKS, COLUMNS, '.3f'),
)


def metrics_table(metrics: Mapping[str, float], notes: Sequence[str] = ()) -> str:
    """Lay out the metrics of COCO as tables, and others one to a line, with notes below them."""
    rest = {name: value for name, value in metrics.items() if isinstance(value, Real)}
    rows = []
    for names, columns, form in TABLES:
        values = {
            row: {column: rest.pop(name.format(item), None) for item, column in columns.items()}
            for row, name in names.items()
        }
        rows += _table(values, form)
    for columns, form in TABLES_BY_CLASS:
        rows += _table(_take_by_class(rest, columns), form, 'class')
    rows += [[title(name), f'{value:.2f}'] for name, value in rest.items()]
    width = max((len(name) for name, *_ in rows), default=0)
    lines = (
        f'{name:<{max(width, 8)}}' + ''.join(f'{cell:>11}' for cell in cells)
        for name, *cells in rows
    )
    return '\n'.join([*lines, *notes]) or 'No metrics were computed.'


def tables_by_class(metrics: Mapping[str, float]) -> tuple[list[list[list[str]]], list[str]]:
    """Return tables of the metrics of each class, and the names of all other metrics."""
    rest = dict(metrics)
    tables = [_table(_take_by_class(rest, cols), form, 'class') for cols, form in TABLES_BY_CLASS]
    return [table for table in tables if table], list(rest)


def _take_by_class(
    metrics: dict[str, float], columns: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Move the metrics of each class out of ``metrics``; ``columns`` has the starts of names."""
    by_class: dict[str, dict[str, float]] = {}
    for prefix, column in columns.items():
        for metric in [metric for metric in metrics if metric.startswith(prefix)]:
            by_class.setdefault(metric.removeprefix(prefix), {})[column] = metrics.pop(metric)
    return by_class


def short_name(name: str) -> str:
    """Return the name of a metric without that of its evaluator: bbox_mAP of coco/bbox_mAP."""
    return name.rpartition('/')[2]


def summary(metrics: Mapping[str, float], first: str | None = None) -> str:
    """Name the main metrics in one line, without those of a class or of objects of a size."""
    _, names = tables_by_class(metrics)
    names = [n for n in names if not n.endswith((OF_MMDET, *DETAILS))]
    names.sort(key=lambda name: name != first)
    values = ((name, metrics[name]) for name in names[:MAX_IN_SUMMARY])
    return ', '.join(
        f'{short_name(name)} {"-" if value == NO_OBJECTS else f"{value:.4g}"}'
        for name, value in values
    )


def figures_by_class(evaluator: Evaluator) -> dict[str, float]:
    """Return the figures of each class that mmseg's metric only prints, such as IoU_tree."""
    return {
        f'{figure}_{name}': value
        for metric in evaluator.metrics
        for figure, values in getattr(metric, 'class_figures', {}).items()
        for name, value in values.items()
    }


def _table(
    values: dict[str, dict[str, float | None]], form: str, corner: str = ''
) -> list[list[str]]:
    """Return the rows of a table with a header, without rows and columns that have no value."""
    values = {
        row: {c: v for c, v in cells.items() if v is not None} for row, cells in values.items()
    }
    columns = dict.fromkeys(column for cells in values.values() for column in cells)
    rows = [
        # COCO's -1 stands for a size or a class that no object has.
        [row, *(f'{cells[c]:{form}}' if cells.get(c, -1) >= 0 else '-' for c in columns)]
        for row, cells in values.items()
        if cells
    ]
    return [[corner, *columns], *rows] if rows else []


def notes_of(evaluator: Evaluator) -> list[str]:
    """Return notes that are needed to compare metrics, such as the limit of detections."""
    return [metric.note for metric in evaluator.metrics if hasattr(metric, 'note')]


def write_metrics(
    path: Path, config: str, checkpoint: str, metrics: Mapping[str, float], evaluator: Evaluator
) -> None:
    """Write the metrics of a test as JSON, with null for the IoU of a class that does not occur."""
    report = {'config': str(config), 'checkpoint': str(checkpoint), 'metrics': dict(metrics)}
    report |= {'notes': notes} if (notes := notes_of(evaluator)) else {}
    for metric in evaluator.metrics:
        if hasattr(metric, 'class_iou'):
            items = metric.class_iou.items()
            report['class_iou'] = {k: None if math.isnan(v) else v for k, v in items}
    write_json(path, report)
