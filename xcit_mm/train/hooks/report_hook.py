"""The metrics at the end of a run as a table, and a report on a training run."""

import platform
import time
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.console import log_file
from ...base.environment import NOTICES, versions
from ...base.errors import reason
from ...base.files import write_json
from ...base.run_files import PICTURES, POINTER, RUN_INFO
from ...base.shipped import commands
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from ..distributed import unwrapped
from ..report import read_run, write_page
from ..report.tables import metrics_table, notes_of
from . import order


@HOOKS.register_module()
class ReportHook(Hook):
    """Log the last metrics as a table; for training, write ``run.json`` and ``report.html``.

    For a test, also log the images per second, not counting the time of the metrics.
    """

    priority = order.REPORT

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._notes: list[str] = []

    def before_run(self, runner: Runner) -> None:
        for notice in NOTICES:
            runner.logger.info(notice)

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            self._info = run_info(runner)
            write_json(Path(runner.work_dir, RUN_INFO), self._info)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._metrics, self._notes = metrics or {}, notes_of(runner.val_loop.evaluator)

    def after_train(self, runner: Runner) -> None:
        folder = Path(runner.work_dir)
        why = getattr(runner.train_loop, 'stop_reason', None)
        end = 'is finished.' if why is None else f'stopped early: {why}.'
        lines = [f'The training {end}', metrics_table(self._metrics, self._notes)]
        if (folder / POINTER).is_file():
            lines.append(f'checkpoint  {(folder / POINTER).read_text("utf-8", "surrogateescape")}')
        for hook in runner.hooks:
            if isinstance(hook, WholeCheckpointHook):
                lines += [f'best        {path}' for path in hook.best.values() if path]
        lines.append(f'log         {log_file(runner.logger) or "on the console only"}')
        if (folder / PICTURES).is_dir():
            lines.append(f'pictures    {folder / PICTURES} (ground truth left, prediction right)')
        if is_main_process():
            if why is not None:
                write_json(folder / RUN_INFO, self._info | dict(stopped_early=why))
            report = folder / 'report.html'
            try:
                write_page([read_run(folder)], report)
            except Exception as error:  # a finished training does not fail because of its report
                retry = commands(f'tools/plot_run.py {folder}')
                report = f'not drawn ({reason(error)}); try {retry}'
            lines.append(f'report      {report}')
        runner.logger.info('\n'.join(lines))

    def before_test_epoch(self, runner: Runner) -> None:
        self._begin = self._end = time.perf_counter()

    def after_test_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._end = time.perf_counter()

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        table = metrics_table(metrics or {}, notes_of(runner.test_loop.evaluator))
        runner.logger.info('The test is finished.\n%s', table)
        number, seconds = len(runner.test_loop.dataloader.dataset), self._end - self._begin
        runner.logger.info(
            '%d images in %.1f s, %.1f images/s', number, seconds, number / max(seconds, 1e-9)
        )


def run_info(runner: Runner) -> dict[str, Any]:
    """Describe a training run for ``run.json``."""
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
