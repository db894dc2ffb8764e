"""Show the losses and metrics of a run in TensorBoard."""

import json
import math
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...environment import require
from ...files import require_no_links
from ...run_report.reading import LOSSES, METRICS
from . import order

SUFFIX = '.xcit_mm'  # of the files in the folder
PREFIXES = {LOSSES: 'train', METRICS: 'val'}


@HOOKS.register_module()
class TensorBoardHook(Hook):
    """Copy ``losses.jsonl`` and ``metrics.jsonl`` to ``<work_dir>/tensorboard``.

    A resume copies them again from their start, which keeps each iteration once. (mmengine's
    TensorboardVisBackend begins another curve, and places validations by their epoch.)

    Raises:
        DependencyError: If the package tensorboard is missing.
    """

    priority = order.TENSORBOARD

    def __init__(self) -> None:
        require('tensorboard')
        self._writer = None

    def before_train(self, runner: Runner) -> None:
        if is_main_process():
            from torch.utils.tensorboard import SummaryWriter

            folder = Path(runner.work_dir, 'tensorboard')
            require_no_links(folder)
            for path in folder.glob(f'*{SUFFIX}'):
                path.unlink()
            # A running TensorBoard drops what it has read of the removed files at step 0.
            self._writer = SummaryWriter(folder, purge_step=0, filename_suffix=SUFFIX)
            self._num_copied = dict.fromkeys(PREFIXES, 0)  # bytes

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        for name, prefix in PREFIXES.items() if self._writer is not None else ():
            log = Path(runner.work_dir, name)
            if not log.exists() or log.stat().st_size == self._num_copied[name]:
                continue
            with log.open('rb') as file:
                file.seek(self._num_copied[name])
                lines = file.readlines()
                self._num_copied[name] = file.tell()
            for line in map(json.loads, lines):
                for key in line.keys() - {'iter', 'epoch'}:
                    value = math.nan if line[key] is None else line[key]
                    self._writer.add_scalar(f'{prefix}/{key}', value, line['iter'])
            self._writer.flush()

    def after_train(self, runner: Runner) -> None:
        self.after_train_iter(runner)
