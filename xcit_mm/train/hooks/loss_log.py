"""Losses and metrics as lines of JSON and for TensorBoard, without gaps over resumes."""

import json
import math
import os
from numbers import Real
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.environment import require
from ...base.files import write_whole
from ...base.run_files import LOSSES, METRICS
from ..report.reading import TIMES, read_lines
from ..report.tables import figures_by_class
from . import order

PREFIXES = {LOSSES: 'train', METRICS: 'val'}  # of names in services that draw curves


@HOOKS.register_module()
class LossLogHook(Hook):
    """Write ``losses.jsonl`` and ``metrics.jsonl``.

    A resume removes the lines after its checkpoint, because their iterations come again.

    Raises:
        UserError: If a resumed run has a damaged line in its logs.
    """

    priority = order.LOSS_LOG
    _is_writing = False  # until training begins: no other validation is logged

    def before_train(self, runner: Runner) -> None:
        intervals = [hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._interval = intervals[0] if intervals else 1
        self._is_writing = is_main_process()
        if self._is_writing:
            self._begin(runner)

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        if self._is_writing and self.every_n_train_iters(runner, self._interval):
            line = dict(iter=runner.iter + 1, epoch=runner.epoch + 1)
            for path, history in runner.message_hub.log_scalars.items():
                mode, _, name = path.partition('/')
                if mode == 'train' and name not in TIMES:
                    is_rate = name.endswith('lr')
                    line[name] = history.current() if is_rate else history.mean(self._interval)
            self._write(runner, LOSSES, line)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, Any] | None = None) -> None:
        if self._is_writing:
            numbers = {k: v for k, v in (metrics or {}).items() if isinstance(v, Real)}
            numbers |= figures_by_class(runner.val_loop.evaluator)
            self._write(runner, METRICS, dict(iter=runner.iter, epoch=runner.epoch) | numbers)

    def _begin(self, runner: Runner) -> None:
        for file in (LOSSES, METRICS):
            remove_lines_after(Path(runner.work_dir, file), runner.iter)

    def _write(self, runner: Runner, file: str, line: dict[str, float]) -> None:
        path = Path(runner.work_dir, file)
        if file == METRICS:
            remove_lines_after(path, line['iter'] - 1)  # a resume may repeat this validation
        line = {k: v if math.isfinite(v) else None for k, v in line.items()}  # JSON has no NaN
        with path.open('a', encoding='utf-8', newline='\n') as log:
            log.write(f'{json.dumps(line, default=float)}\n')  # NumPy's numbers
            log.flush()
            os.fsync(log.fileno())


@HOOKS.register_module()
class TensorBoardHook(LossLogHook):
    """Write the numbers of ``losses.jsonl`` and ``metrics.jsonl`` to ``<work_dir>/tensorboard``.

    A resume hides the iterations after its checkpoint, because they come again. (mmengine's
    TensorboardVisBackend begins another curve, and places validations by their epoch.)

    Raises:
        DependencyError: If the package tensorboard is missing.
    """

    priority = order.TENSORBOARD

    def __init__(self) -> None:
        require('tensorboard')

    def _begin(self, runner: Runner) -> None:
        self._folder, self._first = Path(runner.work_dir, 'tensorboard'), runner.iter
        self._open(self._first + 1)

    def _write(self, runner: Runner, file: str, line: dict[str, float]) -> None:
        if file == METRICS and line['iter'] == self._first:  # a resume repeats this validation
            self._open(self._first)
            for text, logged in read_lines(Path(runner.work_dir, LOSSES)):
                if logged['iter'] == self._first:
                    self._add(LOSSES, json.loads(text))
        self._add(file, line)

    def _open(self, purge_step: int) -> None:
        """Hide the steps from ``purge_step`` on, and write others."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._folder, purge_step=purge_step)

    def _add(self, file: str, line: dict[str, float | None]) -> None:
        for name in line.keys() - {'iter', 'epoch'}:
            value = math.nan if line[name] is None else line[name]
            self._writer.add_scalar(f'{PREFIXES[file]}/{name}', value, line['iter'])
        self._writer.flush()


def remove_lines_after(path: Path, last_iter: int) -> None:
    """Keep the lines of a log up to an iteration."""
    lines = read_lines(path)
    if path.exists():
        with write_whole(path, 'w') as file:
            file.writelines(f'{text}\n' for text, line in lines if line['iter'] <= last_iter)
