"""The metrics at the end of a run as a table, and a report on a training."""

import math
import platform
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ... import mmcv_ops
from ...console import log_file
from ...environment import versions
from ...errors import reason
from ...files import write_json
from ...run_files import PICTURES, POINTER, RUN_INFO
from ...run_report import read_run, write_page
from ...run_report.titles import OF_CLASS, PRECISIONS, title
from ..distributed import unwrapped
from . import order

# The rows of a table with the names of their metrics, its columns, and the format of its figures.
BOXES_AND_MASKS = dict(boxes='coco/bbox_{}', masks='coco/segm_{}')
SEGMENTS = dict(all='coco_panoptic/{}', things='coco_panoptic/{}_th', stuff='coco_panoptic/{}_st')
COLUMNS = {item: name.removeprefix('AP ') for item, name in PRECISIONS.items()}
TABLES = (
    (SEGMENTS, dict(PQ='PQ', SQ='SQ', RQ='RQ'), '.2f'),
    (BOXES_AND_MASKS, COLUMNS, '.3f'),
)


@HOOKS.register_module()
class ReportHook(Hook):
    """Log the last metrics as a table; for training, write ``run.json`` and ``report.html``.

    For a test, also log the images per second, not counting the time of the metrics.
    """

    priority = order.REPORT

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def before_run(self, runner: Runner) -> None:
        if mmcv_ops.is_active():
            runner.logger.info(mmcv_ops.NOTICE)

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            write_json(Path(runner.work_dir, RUN_INFO), run_info(runner))

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._metrics = metrics or {}

    def after_train(self, runner: Runner) -> None:
        folder = Path(runner.work_dir)
        lines = ['The training is finished.', metrics_table(self._metrics)]
        if (folder / POINTER).is_file():
            lines.append(f'checkpoint  {(folder / POINTER).read_text("utf-8", "surrogateescape")}')
        lines.append(f'log         {log_file(runner.logger) or "on the console only"}')
        if (folder / PICTURES).is_dir():
            lines.append(f'pictures    {folder / PICTURES} (ground truth left, prediction right)')
        if is_main_process():
            report = folder / 'report.html'
            try:
                write_page([read_run(folder)], report)
            except Exception as error:  # a finished training does not fail because of its report
                report = f'not drawn ({reason(error)}); try tools/plot_run.py {folder}'
            lines.append(f'report      {report}')
        runner.logger.info('\n'.join(lines))

    def before_test_epoch(self, runner: Runner) -> None:
        self._begin = self._end = time.perf_counter()

    def after_test_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._end = time.perf_counter()

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        runner.logger.info('The test is finished.\n%s', metrics_table(metrics or {}))
        number, seconds = len(runner.test_loop.dataloader.dataset), self._end - self._begin
        runner.logger.info(
            '%d images in %.1f s, %.1f images/s', number, seconds, number / max(seconds, 1e-9)
        )


def run_info(runner: Runner) -> dict[str, Any]:
    """Describe a training for ``run.json``."""
    model = unwrapped(runner.model)
    parts = {'all': model, **dict(model.named_children())}
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    parameters['trained'] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return dict(
        config=str(runner.cfg.filename),
        started=time.strftime('%Y-%m-%d %H:%M:%S'),
        iterations=runner.max_iters,
        iterations_per_epoch=len(runner.train_dataloader),
        processes=get_world_size(),
        images_per_process=runner.train_dataloader.batch_sampler.batch_size,
        hardware=', '.join(gpus) or f'CPU, {torch.get_num_threads()} threads per process',
        parameters={name: number for name, number in parameters.items() if number},
        versions={
            **versions(),
            'Python': platform.python_version(),
            'system': platform.platform(),
        },
        config_text=runner.cfg.pretty_text,
    )


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Lay out the metrics of COCO as tables, and others one to a line."""
    rest = {name: value for name, value in metrics.items() if isinstance(value, Real)}
    rows = []
    for names, columns, form in TABLES:
        values = {
            row: {column: rest.pop(name.format(item), None) for item, column in columns.items()}
            for row, name in names.items()
        }
        rows += _table(values, form)
    by_class: dict[str, dict[str, float]] = {}
    for row, name in BOXES_AND_MASKS.items():
        prefix = name.format(OF_CLASS)
        for metric in [metric for metric in rest if metric.startswith(prefix)]:
            by_class.setdefault(metric.removeprefix(prefix), {})[row] = rest.pop(metric)
    rows += _table(by_class, '.3f', 'AP of')
    rows += [[title(name), f'{value:.2f}'] for name, value in rest.items()]
    width = max((len(name) for name, *_ in rows), default=0)
    lines = (
        f'{name:<{max(width, 8)}}' + ''.join(f'{cell:>8}' for cell in cells)
        for name, *cells in rows
    )
    return '\n'.join(lines) or 'No metrics were computed.'


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


def write_metrics(
    path: Path, config: str, checkpoint: str, metrics: Mapping[str, float], evaluator: Evaluator
) -> None:
    """Write the metrics of a test as JSON, with null for the IoU of a class that does not occur."""
    report = {'config': str(config), 'checkpoint': str(checkpoint), 'metrics': dict(metrics)}
    for metric in evaluator.metrics:
        if hasattr(metric, 'class_iou'):
            items = metric.class_iou.items()
            report['class_iou'] = {k: None if math.isnan(v) else v for k, v in items}
    write_json(path, report)
