"""A run that is asked to stop: the step ends, a checkpoint is written, the exit code says so."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from mmengine.dist import is_distributed
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...errors import Interrupted
from ..distributed import Consensus
from .checkpoint import WholeCheckpointHook

# What clusters send before they take a machine back, and Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = b'asked to stop: after this step, with a checkpoint (asked again: at once)\n'
ONE_REQUEST = 1  # second, in which the same signal may come twice: timeout(1) sends it so
PATIENCE = 60  # seconds without data, where a checkpoint needs the end of the step


@HOOKS.register_module()
class InterruptHook(Hook):
    """Stop a training at SIGTERM or SIGINT, on all processes after the same step.

    A validation is left at once, and made anew on a resume, if the step before it is saved;
    otherwise it is finished first, because the model may hold averaged weights during it. If the
    run is waiting for data, it does not finish the step or the validation. A second signal ends the
    process at once.

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
        runner.train_loop.dataloader.on_wait = partial(self._while_training_waits, runner)
        if runner.val_loop is not None:
            runner.val_loop.dataloader.on_wait = partial(self._while_validation_waits, runner)

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
        self._save_and_stop(runner, signum, runner.iter + 1)

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs: Sequence
    ) -> None:
        if getattr(self, '_signal', 0) and _is_saved(runner):
            self._stop(runner, self._signal, 'in a validation, after the checkpoint of its step')

    def after_train(self, runner: Runner) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _while_training_waits(self, runner: Runner, seconds: float) -> None:
        if not self._signal:
            return
        if not is_distributed() and runner.optim_wrapper.should_update():
            self._save_and_stop(runner, self._signal, runner.iter)
        if seconds >= PATIENCE:
            self._stop(runner, self._signal, 'while it waited for data, without a checkpoint of it')

    def _while_validation_waits(self, runner: Runner, seconds: float) -> None:
        if self._signal and (_is_saved(runner) or seconds >= PATIENCE):
            self._stop(runner, self._signal, 'while a validation waited for data')

    def _save_and_stop(self, runner: Runner, signum: int, done: int) -> NoReturn:
        for hook in _checkpoint_hooks(runner):
            hook.save_between(runner, done)
        self._stop(runner, signum, f'after iteration {done}')

    def _stop(self, runner: Runner, signum: int, place: str) -> NoReturn:
        self.after_train(runner)
        interrupted = Interrupted(signum, place)
        runner.logger.info(f'Here the run was {interrupted}')
        raise interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        # torchrun hands on what its processes had already: only one alone can tell a second.
        if self._signal == number and not is_distributed():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if time.monotonic() > self._noted + ONE_REQUEST:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self._signal, self._noted = number, time.monotonic()
        with suppress(OSError):  # nobody reads it
            os.write(sys.stderr.fileno(), STOPPING)  # not a log, which may be writing a line


def _is_saved(runner: Runner) -> bool:
    return any(hook.written == runner.iter for hook in _checkpoint_hooks(runner))


def _checkpoint_hooks(runner: Runner) -> list[WholeCheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook)]
