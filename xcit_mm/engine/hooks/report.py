"""What a run says at its end: the metrics as a table, and where everything is."""

import json
import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ... import mmcv_ops
from ...errors import reason
from ...files import write_whole
from ...run_report import read_run, write_page
from ...run_report.metrics import COCO_COLUMNS, COCO_ROWS
from ...run_report.reading import FACTS
from ..console import log_file
from ..facts import facts_of
from ..resume import POINTER
from .pictures import FOLDER as PICTURES

PAGE = 'report.html'


@HOOKS.register_module()
class ReportHook(Hook):
    """Log what stands in for mmcv, the last evaluation as a table, and where everything is.

    A training also leaves ``run.json``, which says what it is, and at its end ``report.html``.
    """

    priority = 'LOWEST'  # after the checkpoint and the pictures are written

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def before_run(self, runner: Runner) -> None:
        if mmcv_ops.in_force():
            runner.logger.info(mmcv_ops.NOTICE)

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            with write_whole(Path(runner.work_dir, FACTS), 'w') as file:
                json.dump(facts_of(runner), file, indent=2)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._metrics = metrics or {}

    def after_train(self, runner: Runner) -> None:
        lines = ['The training is finished.', metrics_table(self._metrics)]
        pointer = Path(runner.work_dir, POINTER)
        if pointer.is_file():
            path = pointer.read_text(encoding='utf-8', errors='surrogateescape')
            lines += [f'checkpoint  {path}']
        lines += [f'log         {log_file(runner.logger) or "on the console only"}']
        pictures = Path(runner.work_dir, PICTURES)
        if pictures.is_dir():
            lines += [f'pictures    {pictures} (ground truth left, prediction right)']
        if is_main_process():
            lines += _report(Path(runner.work_dir))
        runner.logger.info('\n'.join(lines))

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        runner.logger.info('The test is finished.\n%s', metrics_table(metrics or {}))


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Lay out metrics for reading.

    Args:
        metrics: As mmengine's evaluators give them: COCO's average precisions (0..1, -1
            where the validation set has no object of that size), or IoU in percent.

    Returns:
        COCO's as a table of boxes and masks, others one to a line.
    """
    left = dict(metrics)
    lines = []
    for kind, row in COCO_ROWS.items():
        values = [left.pop(f'coco/{kind}_{column}', None) for column in COCO_COLUMNS]
        if None not in values:
            lines.append(f'{row:<8}' + ''.join(f'{_precision(v):>8}' for v in values))
    if lines:
        lines.insert(0, ' ' * 8 + ''.join(f'{name:>8}' for name in COCO_COLUMNS.values()))
    numbers = {name: value for name, value in left.items() if isinstance(value, Real)}
    lines += [f'{name:<8}{value:>8.2f}' for name, value in numbers.items()]
    return '\n'.join(lines) or 'No metrics were computed.'


def write_metrics(
    path: Path,
    config: str,
    checkpoint: str,
    metrics: Mapping[str, float],
    evaluator: Evaluator,
) -> None:
    """Write the metrics of a test as JSON, whole or not at all.

    Args:
        path: The file, which is replaced.
        config: Path of the config that was tested.
        checkpoint: Its weights.
        metrics: As of :func:`metrics_table`.
        evaluator: Which computed them; of a ``ClassIoUMetric`` the IoU of each class is
            written as well (null where a class does not occur).
    """
    report = {'config': str(config), 'checkpoint': str(checkpoint), 'metrics': dict(metrics)}
    for metric in evaluator.metrics:
        class_iou = getattr(metric, 'class_iou', None)
        if class_iou is not None:
            report['class_iou'] = {k: None if math.isnan(v) else v for k, v in class_iou.items()}
    with write_whole(path, 'w') as file:
        json.dump(report, file, indent=2, default=float)  # NumPy's numbers


def _precision(value: float) -> str:
    return '-' if value < 0 else f'{value:.3f}'


def _report(work_dir: Path) -> list[str]:
    try:
        write_page([read_run(work_dir, work_dir.absolute().name)], work_dir / PAGE)
    except Exception as error:  # a training that is done does not fail over a drawing
        return [f'report      not drawn ({reason(error)}); try tools/plot_run.py {work_dir}']
    return [f'report      {work_dir / PAGE}']
