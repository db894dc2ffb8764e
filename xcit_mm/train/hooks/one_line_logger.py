"""The log of losses, and of each validation in one line."""

import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from mmengine.hooks import LoggerHook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from ...base.console import only_warnings
from ...base.run_files import METRICS
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from ..report.best import best_validation, main_metric
from ..report.reading import Line, read_lines
from ..report.tables import short_name, summary


@HOOKS.register_module()
class OneLineLoggerHook(LoggerHook):
    """mmengine's hook, but the log has a validation as one line: main metrics, best value, seconds.

    The log also has the first iteration of a run, with the time that is left: on a CPU, an interval
    may take minutes.

    ``metrics.jsonl``, the report and mmengine's ``scalars.json`` have all metrics. The metrics of a
    test are in the table of :class:`~xcit_mm.train.hooks.report_hook.ReportHook`.

    It has the arguments of mmengine's hook.
    """

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        self._first = runner.iter
        lines = (line for _, line in read_lines(Path(runner.work_dir, METRICS)))
        self._lines: dict[float, Line] = {
            line['iter']: line for line in lines if line['iter'] <= runner.iter
        }

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        is_logged = self.every_n_inner_iters(batch_idx, self.interval)
        is_logged |= self.end_of_epoch(runner.train_dataloader, batch_idx)
        if runner.iter == self._first and not is_logged:
            _, line = runner.log_processor.get_log_after_iter(runner, batch_idx, 'train')
            runner.logger.info(line)

    def before_val_epoch(self, runner: Runner) -> None:
        super().before_val_epoch(runner)
        self._start = time.perf_counter()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, Any] | None = None) -> None:
        with only_warnings(runner.logger):
            super().after_val_epoch(runner, metrics)
        seconds = time.perf_counter() - self._start
        numbers = {k: v for k, v in (metrics or {}).items() if isinstance(v, Real)}
        place, best = '', ''
        monitored = monitored_metric(runner, numbers)
        if isinstance(runner._train_loop, BaseLoop):  # otherwise it is a validation alone
            by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
            size = len(runner.train_dataloader) if by_epoch else 1
            last = runner.max_epochs if by_epoch else runner.max_iters
            place = f' at {"epoch " * by_epoch}{runner.iter // size} of {last}'
            self._lines[runner.iter] = numbers | dict(iter=runner.iter)
            if monitored is not None and len(self._lines) > 1:
                name, less = monitored
                line = best_validation([*self._lines.values()], name, less)
                if line is not None:
                    best = f' (best {short_name(name)} {line[name]:.4g} at {line["iter"] // size})'
        first = None if monitored is None else monitored[0]
        values = summary(numbers, first) or 'no metrics'
        runner.logger.info(f'Validation{place}: {values}{best}, {seconds:.1f} s')

    def after_test_epoch(self, runner: Runner, metrics: dict[str, Any] | None = None) -> None:
        with only_warnings(runner.logger):
            super().after_test_epoch(runner, metrics)


def monitored_metric(runner: Runner, metrics: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Return the metric by which validations are compared, and whether less of it is better.

    It is the first metric of ``save_best``, or one of the main metrics.
    """
    for hook in runner.hooks:
        name = next(iter(hook.best), None) if isinstance(hook, WholeCheckpointHook) else None
        if name in metrics:  # not 'auto', which the first validation resolves
            return name, hook.rules[0] == 'less'
    name = main_metric(metrics)
    return None if name is None else (name, False)
