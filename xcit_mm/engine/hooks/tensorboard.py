"""A run for TensorBoard, as one curve over all its interruptions."""

import math
from numbers import Real
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...environment import require
from ...files import require_no_links
from ...run_report.reading import METRICS, PLACES, read_log
from . import order
from .loss_log import log_interval, mean_losses

FOLDER = 'tensorboard'


@HOOKS.register_module()
class TensorBoardHook(Hook):
    """Write losses, learning rates and metrics to ``<work_dir>/tensorboard``.

    mmengine's TensorboardVisBackend begins another folder with every resume, with the
    iterations after the last checkpoint once more, and counts validations in epochs: all at 0
    where a run has none. Here everything is over iterations, each of them once.

    Raises:
        DependencyError: If the package tensorboard is missing.
    """

    priority = order.TENSORBOARD

    def __init__(self) -> None:
        require('tensorboard')
        self._writer = None
        self._done: dict[str, float] = {}  # the validation of the checkpoint's step

    def before_train(self, runner: Runner) -> None:
        if not is_main_process():
            return
        from torch.utils.tensorboard import SummaryWriter

        self._interval = log_interval(runner)
        # Readers leave out what was written for this step and later ones: it comes once more. A
        # validation of this step does so unless the config has none for it any longer.
        require_no_links(Path(runner.work_dir, FOLDER))
        self._writer = SummaryWriter(Path(runner.work_dir, FOLDER), purge_step=runner.iter)
        for line in read_log(Path(runner.work_dir, METRICS)):
            if line['iter'] == runner.iter:
                self._done = {k: v for k, v in line.items() if k not in PLACES}
        if runner.iter and runner.iter % self._interval == 0:
            self._add_losses(runner, runner.iter)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None
    ) -> None:
        self._add_done(runner)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        if self._writer is not None and self.every_n_train_iters(runner, self._interval):
            self._add_losses(runner, runner.iter + 1)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if self._writer is not None:
            self._done = {}
            values = {k: float(v) for k, v in (metrics or {}).items() if isinstance(v, Real)}
            self._add('val', values, runner.iter)

    def after_train(self, runner: Runner) -> None:
        if self._writer is not None:
            self._add_done(runner)
            self._writer.close()

    def _add_done(self, runner: Runner) -> None:
        if self._done:
            self._add('val', self._done, runner.iter)
            self._done = {}

    def _add_losses(self, runner: Runner, step: int) -> None:
        losses = mean_losses(runner, self._interval)
        self._add('train', {k: math.nan if v is None else v for k, v in losses.items()}, step)

    def _add(self, prefix: str, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f'{prefix}/{name}', value, step)
        self._writer.flush()
