"""The losses and metrics of a run as one line of JSON each, over all its interruptions."""

import json
import math
import os
from numbers import Real
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...files import write_whole
from ...run_report.reading import LOSSES, METRICS, TIMES, read_lines
from . import order

PREFIX = 'train/'
LEARNING_RATE = 'lr'  # and base_lr


@HOOKS.register_module()
class LossLogHook(Hook):
    """Write ``losses.jsonl`` and ``metrics.jsonl``, with no gap and none twice.

    mmengine starts a log anew with every resume, with the iterations that were taken after the
    last checkpoint once more. Here those are taken back.
    """

    priority = order.LOSS_LOG

    def __init__(self) -> None:
        self._metrics: Path | None = None  # where a training writes them

    def before_train(self, runner: Runner) -> None:
        self._interval = log_interval(runner)
        self._losses, self._metrics = (Path(runner.work_dir, name) for name in (LOSSES, METRICS))
        if is_main_process():
            for path in (self._losses, self._metrics):
                _take_back(path, runner.iter)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        if is_main_process() and self.every_n_train_iters(runner, self._interval):
            values = mean_losses(runner, self._interval)
            _append(self._losses, {'iter': runner.iter + 1, 'epoch': runner.epoch + 1, **values})

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if self._metrics is None or not is_main_process():
            return
        _take_back(self._metrics, runner.iter - 1)  # a resume may begin with the same validation
        values = {k: _finite(float(v)) for k, v in (metrics or {}).items() if isinstance(v, Real)}
        _append(self._metrics, {'iter': runner.iter, 'epoch': runner.epoch, **values})


def log_interval(runner: Runner) -> int:
    """After how many iterations mmengine logs the losses."""
    return next((hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)), 1)


def mean_losses(runner: Runner, interval: int) -> dict[str, float | None]:
    """What a training logs, by name.

    Args:
        runner: In the midst of a training.
        interval: Iterations that the means are over; a learning rate is the last one.

    Returns:
        The values; None for one that is not finite, which JSON does not know.
    """
    values = {}
    for name, history in runner.message_hub.log_scalars.items():
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in TIMES:
            is_rate = name.endswith(LEARNING_RATE)
            value = history.current() if is_rate else history.mean(interval)
            values[name.removeprefix(PREFIX)] = _finite(float(value))
    return values


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _take_back(path: Path, last_iter: int) -> None:
    """Leave the lines up to an iteration, and what a killed run did not finish out."""
    lines = read_lines(path)
    if path.exists():
        kept = [text for text, line in lines if line.get('iter', math.inf) <= last_iter]
        with write_whole(path, 'w') as file:
            file.writelines(f'{text}\n' for text in kept)


def _append(path: Path, line: dict[str, float | None]) -> None:
    with path.open('a') as file:
        file.write(f'{json.dumps(line)}\n')
        file.flush()
        os.fsync(file.fileno())
