"""A run that is asked to stop: the step ends, a checkpoint is written, the exit code says so."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from mmengine.dist import is_distributed
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import Interrupted
from .checkpoints import WholeCheckpointHook
from .consensus import Consensus

# What clusters send before they take a machine back, and Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = b'asked to stop: after this step, with a checkpoint (a second Ctrl-C: at once)\n'


@HOOKS.register_module()
class InterruptHook(Hook):
    """Stop a training at SIGTERM or SIGINT, on all processes after the same step.

    A validation is left at once, and made anew on a resume, if the step before it is saved;
    otherwise it is finished first: in the midst of it the model may hold averaged weights.

    Raises:
        Interrupted: Once the checkpoint is written.
    """

    priority = 'LOWEST'  # after mmengine's own checkpoint of this step

    def before_train(self, runner: Runner) -> None:
        self._signal = 0
        self._consensus = Consensus.of(runner)
        self._before: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():  # Python's rule for handlers
            self._before = {s: signal.signal(s, self._note) for s in SIGNALS}

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: dict | None = None,
    ) -> None:
        if not runner.optim_wrapper.should_update():  # gradients are not in checkpoints
            return
        signum = self._consensus.maximum(self._signal)
        if not signum:
            return
        for hook in _checkpoint_hooks(runner):
            hook.save_between(runner)
        self._stop(runner, signum, f'after iteration {runner.iter + 1}')

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence
    ) -> None:
        is_saved = any(hook.written == runner.iter for hook in _checkpoint_hooks(runner))
        if getattr(self, '_signal', 0) and is_saved:
            self._stop(runner, self._signal, 'in a validation, after the checkpoint of its step')

    def after_train(self, runner: Runner) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, runner: Runner, signum: int, place: str) -> NoReturn:
        self.after_train(runner)
        interrupted = Interrupted(signum, place)
        runner.logger.info(f'Here the run was {interrupted}')
        raise interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        # torchrun hands a Ctrl-C on to processes that had it: only one alone can tell a second.
        if self._signal == number == signal.SIGINT and not is_distributed():
            raise KeyboardInterrupt
        self._signal = number
        os.write(sys.stderr.fileno(), STOPPING)  # a log could be in the midst of a line


def _checkpoint_hooks(runner: Runner) -> list[WholeCheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook)]
