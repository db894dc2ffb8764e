"""Show the losses and metrics of a run in TensorBoard."""

import json
import math
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...environment import require
from ...files import require_no_links
from ...run_report.reading import LOSSES, METRICS
from . import order

FOLDER = 'tensorboard'
SUFFIX = '.xcit_mm'  # of the files in it
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

            folder = Path(runner.work_dir, FOLDER)
            require_no_links(folder)
            for path in folder.glob(f'*{SUFFIX}'):
                path.unlink()
            # Step 0 has a TensorBoard that is running drop what it has read of the removed files.
            self._writer = SummaryWriter(folder, purge_step=0, filename_suffix=SUFFIX)
            self._num_copied = dict.fromkeys(PREFIXES, 0)  # bytes

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        if self._writer is not None:
            for name, prefix in PREFIXES.items():
                self._copy(Path(runner.work_dir, name), prefix)

    def after_train(self, runner: Runner) -> None:
        self.after_train_iter(runner)

    def _copy(self, log: Path, prefix: str) -> None:
        if log.exists() and log.stat().st_size > self._num_copied[log.name]:
            with log.open('rb') as file:
                file.seek(self._num_copied[log.name])
                lines = file.readlines()
                self._num_copied[log.name] = file.tell()
            for line in map(json.loads, lines):
                for name in line.keys() - {'iter', 'epoch'}:
                    value = math.nan if line[name] is None else line[name]
                    self._writer.add_scalar(f'{prefix}/{name}', value, line['iter'])
            self._writer.flush()
