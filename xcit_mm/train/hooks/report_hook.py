"""The metrics at the end of a run as a table, and a report on a training run."""

import platform
import time
from datetime import timedelta
from pathlib import Path, PurePath
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
from ...base.run_files import BEST, LAST, PICTURES, POINTER, RUN_INFO
from ...base.shipped import commands
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from ..checkpoints.links import through_link
from ..distributed import unwrapped
from ..report import read_run, write_page
from ..report.tables import figures_by_class, metrics_table, notes_of, short_name
from . import order
from .next_commands import next_commands
from .one_line_logger import monitored_metric

SECONDS = 'seconds'  # in meta of a checkpoint: the duration of the training until then


@HOOKS.register_module()
class ReportHook(Hook):
    """Log the last metrics as a table; for training, write ``run.json`` and ``report.html``.

    A training also logs its duration, which includes that of the runs that it resumes, its best and
    its last checkpoint, and the commands that come next.

    For a test, also log the images per second, not counting the time of the metrics.
    """

    priority = order.REPORT

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._notes: list[str] = []
        self._validated: int | None = None  # the iteration of the metrics
        self._seconds = 0.0  # of the runs that this one resumes
        self._start = time.perf_counter()
        self._info: dict[str, Any] = {}

    def before_run(self, runner: Runner) -> None:
        for notice in NOTICES:
            runner.logger.info(notice)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if runner._resume:
            self._seconds = checkpoint['meta'].get(SECONDS, 0.0)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        checkpoint['meta'][SECONDS] = self._duration()

    def _duration(self) -> float:
        return self._seconds + time.perf_counter() - self._start

    def before_train(self, runner: Runner) -> None:
        self._start = time.perf_counter()
        if is_main_process():
            self._info = run_info(runner)
            write_json(Path(runner.work_dir, RUN_INFO), self._info)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        evaluator = runner.val_loop.evaluator
        self._metrics, self._notes = dict(metrics or {}), notes_of(evaluator)
        self._metrics |= figures_by_class(evaluator)
        self._validated = runner.iter

    def after_train(self, runner: Runner) -> None:
        folder = Path(runner.work_dir)
        why = getattr(runner.train_loop, 'stop_reason', None)
        end = 'is finished.' if why is None else f'stopped early: {why}.'
        duration = str(timedelta(seconds=round(self._duration())))
        lines = [f'The training {end}', metrics_table(self._metrics, self._notes)]
        checkpoints = self._checkpoints(runner)
        lines += [f'{kind:<11} {path} ({what})' for kind, path, what in checkpoints]
        lines.append(f'duration    {duration}')
        lines.append(f'log         {log_file(runner.logger) or "on the console only"}')
        if (folder / PICTURES).is_dir():
            lines.append(f'pictures    {folder / PICTURES} (ground truth left, prediction right)')
        if is_main_process():
            ended = dict(duration=duration) | ({} if why is None else dict(stopped_early=why))
            write_json(folder / RUN_INFO, self._info | ended)
            report = folder / 'report.html'
            try:
                write_page([read_run(folder)], report)
            except Exception as error:  # a finished training does not fail because of its report
                retry = commands(f'tools/plot_run.py {folder}')
                report = f'not drawn ({reason(error)}); try {retry}'
            lines.append(f'report      {report}')
        if checkpoints:
            following = next_commands(runner, checkpoints[0][1])
            lines += ['What comes next:', *following] if following else []
        runner.logger.info('\n'.join(lines))

    def _checkpoints(self, runner: Runner) -> list[tuple[str, str, str]]:
        """Return the best and the last checkpoint: the word for it, its path, file and metric."""
        folder, found = Path(runner.work_dir), []
        for hook in (hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook)):
            for name, path in hook.best.items():
                if path is not None:
                    # The names are mmengine's.
                    key = 'best_score' if len(hook.best) == 1 else f'best_score_{name}'
                    score = f'{short_name(name)} {runner.message_hub.get_info(key):.4g}'
                    what = f'{PurePath(path).name}, {score}'
                    found.append(('best', through_link(folder / BEST, path), what))
            if (folder / POINTER).is_file():
                path = (folder / POINTER).read_text('utf-8', 'surrogateescape')
                what, monitored = PurePath(path).name, monitored_metric(runner, self._metrics)
                if monitored is not None and hook.written == self._validated:
                    what += f', {short_name(monitored[0])} {self._metrics[monitored[0]]:.4g}'
                found.append(('last', through_link(folder / LAST, path), what))
        return found

    def before_test_epoch(self, runner: Runner) -> None:
        self._begin = self._end = time.perf_counter()

    def after_test_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._end = time.perf_counter()

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        evaluator = runner.test_loop.evaluator
        figures = {**(metrics or {}), **figures_by_class(evaluator)}
        table = metrics_table(figures, notes_of(evaluator))
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
    images = dict(training=len(runner.train_dataloader.dataset))
    if runner.val_loop is not None:
        images['validation'] = len(runner.val_dataloader.dataset)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return dict(
        config=str(runner.cfg.filename),
        started=time.strftime('%Y-%m-%d %H:%M:%S'),
        iterations=runner.max_iters,
        images=images,
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
