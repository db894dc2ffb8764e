"""Losses and metrics for services that cannot delete steps: one curve for a run and its resumes."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner

from ...base.environment import require
from ...base.errors import UserError, reason
from ...base.files import write_json
from ...base.processes import all_processes, cpu_group
from ...base.run_files import CURVE_IDS
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from ..report.reading import Line, read_lines
from . import order
from .loss_log import PREFIXES

PROJECT = 'xcit_mm'  # of runs whose project the environment does not name


class CurveHook(Hook):
    """Send the numbers of ``losses.jsonl`` and ``metrics.jsonl`` to a service.

    Such a service cannot delete a step. A step is therefore sent only after a later checkpoint has
    been written, so that no resume repeats the step. A resumed run first sends the steps that the
    service lacks. The curve is always the same as the curve in the two files, even if the resumed
    run differs from the run before the interruption. A run that resumes from an older checkpoint
    than its newest cannot replace the steps that were sent, and a warning says so.

    A subclass has a ``name``, which is the name of its package and of the hook in a config, a
    ``remedy`` for a service that cannot be reached, and the methods below.

    Raises:
        DependencyError: If the package is missing.
        UserError: If the service cannot be reached at the start. Nothing of an earlier run has been
            moved by then. If the service fails later, a warning is logged, and the steps are sent
            after the next checkpoint.
    """

    priority = order.CURVES
    name: str
    remedy: str
    _is_sending = False
    _newest = -1  # the last step that the service has when a run starts

    def __init__(self) -> None:
        require(self.name)

    def _connect(self, runner: Runner, run_id: str | None) -> str:
        """Start a run of the service, or continue the run with this id, and return its id."""
        raise NotImplementedError

    def _write(self, rows: Sequence[Line]) -> None:
        """Send the rows that the service lacks, sorted by ``iter``."""
        raise NotImplementedError

    def _close(self) -> None:
        """End the run of the service."""
        raise NotImplementedError

    def before_run(self, runner: Runner) -> None:
        if not isinstance(runner._train_loop, BaseLoop):  # a test
            return
        with all_processes(cpu_group()):
            if is_main_process():
                ids = _ids(Path(runner.work_dir)) if runner._resume else {}
                try:
                    self._id = self._connect(runner, ids.get(self.name))
                except Exception as error:  # of its own kind in each package
                    raise UserError(
                        f'--logger {self.name} cannot start ({reason(error)}): {self.remedy}'
                    ) from error

    def before_train(self, runner: Runner) -> None:
        self._is_sending = is_main_process()
        if self._is_sending:
            folder = Path(runner.work_dir)
            write_json(folder / CURVE_IDS, _ids(folder) | {self.name: self._id})
            if self._newest > runner.iter:
                runner.logger.warning(
                    f'--logger {self.name}: the run {self._id} keeps its steps up to '
                    f'{self._newest}, because no step can be replaced; for a curve of its own, '
                    f'delete {folder / CURVE_IDS} and resume again'
                )
            self._send(runner, runner.iter)

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        hooks = (hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook))
        written = max((hook.written or 0 for hook in hooks), default=0)
        if self._is_sending and written > self._sent_below:
            self._send(runner, written)

    def after_train(self, runner: Runner) -> None:
        if self._is_sending:
            self._send(runner, math.inf)

    def after_run(self, runner: Runner) -> None:
        if self._is_sending:
            self._attempt(runner, self._close)

    def _send(self, runner: Runner, below: float) -> None:
        """Send the steps before an iteration, whose validation a resume may repeat."""
        rows = [row for row in _rows(Path(runner.work_dir)) if row['iter'] < below]
        self._sent_below = below
        self._attempt(runner, self._write, rows)

    def _attempt(self, runner: Runner, action: Any, *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:  # a training does not end because of its curve
            runner.logger.warning(
                f'--logger {self.name}: steps cannot be sent ({reason(error)}); they are in '
                'losses.jsonl, and are sent with a later checkpoint or by --resume'
            )


def _rows(folder: Path) -> list[Line]:
    """Join the losses and the metrics of each iteration."""
    rows: dict[float, Line] = {}
    for file, prefix in PREFIXES.items():
        for _, line in read_lines(folder / file):
            row = rows.setdefault(line['iter'], dict(iter=line['iter']))
            row |= {f'{prefix}/{name}': value for name, value in line.items() if name != 'iter'}
    return [rows[iteration] for iteration in sorted(rows)]


def _ids(folder: Path) -> dict[str, str]:
    """Return the id of the run in each service."""
    path = folder / CURVE_IDS
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
