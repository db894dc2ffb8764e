"""The losses of a run as one line of JSON each, over all its interruptions."""

import json
import math
import os
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..files import write_whole

FILE = 'losses.jsonl'
PREFIX = 'train/'
TIMES = ('time', 'data_time')  # of this machine, not of the run


@HOOKS.register_module()
class LossLogHook(Hook):
    """Write ``losses.jsonl``: means over the interval of the log, with no gap and none twice.

    mmengine starts a log anew with every resume, with the iterations that were taken after the
    last checkpoint once more. Here those are taken back.
    """

    priority = 'BELOW_NORMAL'  # before a checkpoint, whose iterations it has then

    def before_train(self, runner: Runner) -> None:
        loggers = (hook for hook in runner.hooks if isinstance(hook, LoggerHook))
        self._interval = next((hook.interval for hook in loggers), 1)
        self._path = Path(runner.work_dir, FILE)
        if is_main_process() and self._path.is_file():
            lines = [line for line in self._path.read_text().splitlines() if line.endswith('}')]
            kept = [line for line in lines if json.loads(line)['iter'] <= runner.iter]
            with write_whole(self._path, 'w') as file:
                file.writelines(f'{line}\n' for line in kept)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        if not is_main_process() or not self.every_n_train_iters(runner, self._interval):
            return
        line = {'iter': runner.iter + 1, 'epoch': runner.epoch + 1}
        for name, history in runner.message_hub.log_scalars.items():
            if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in TIMES:
                mean = float(history.mean(self._interval))
                line[name.removeprefix(PREFIX)] = mean if math.isfinite(mean) else None
        with self._path.open('a') as file:
            file.write(f'{json.dumps(line)}\n')
            file.flush()
            os.fsync(file.fileno())
