"""The end of a run at a signal: after a step, with a checkpoint and an exit code that says why."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.console import STOPPED
from ...base.errors import Interrupted
from ...base.processes import cpu_group
from ..checkpoints.checkpoint_hook import WholeCheckpointHook
from . import order

# Clusters send the first before they take a machine back; the others are Ctrl-C, and Ctrl-Break on
# Windows.
NAMES = 'SIGTERM', 'SIGINT', 'SIGBREAK'
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
STOPPING = b'stopping after this step, with a checkpoint'
AT_ONCE = b' (the same signal again: at once)'
REPEAT_WINDOW = 1  # second within which the same signal may come twice: timeout(1) sends it so
TIMEOUT = 60  # seconds without data after which a run stops in the middle of a step


@HOOKS.register_module()
class InterruptHook(Hook):
    """Stop a training run at SIGTERM or SIGINT, on all processes after the same step.

    A validation stops at once if its step is saved, and is repeated on a resume. Otherwise it is
    finished first, because the model may hold averaged weights during it. If the data does not
    arrive, a single process writes the checkpoint at once; several processes stop after a minute,
    without a new checkpoint. A second signal ends a single process at once.

    Raises:
        Interrupted: With the place where the run stopped.
    """

    priority = order.INTERRUPT
    _signal = 0  # none has arrived

    def before_train(self, runner: Runner) -> None:
        self._group = cpu_group()
        self._checkpoints = [h for h in runner.hooks if isinstance(h, WholeCheckpointHook)]
        self._handlers: dict[signal.Signals, object] = {}
        if threading.current_thread() is threading.main_thread():  # the only one that may
            self._handlers = {s: signal.signal(s, self._on_signal) for s in SIGNALS}

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        if not runner.optim_wrapper.should_update():  # checkpoints hold no gradients
            return
        signum = torch.tensor(self._signal)
        all_reduce(signum, 'max', self._group)
        if signum:
            self._save_and_stop(runner, int(signum), runner.iter + 1)

    def after_val_iter(self, runner: Runner, **_: Any) -> None:
        if self._signal and self._is_saved(runner):
            self._stop(runner, self._signal, 'in a validation, after the checkpoint of its step')

    def after_train(self, runner: Runner) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def while_training_waits(self, runner: Runner, seconds: float) -> None:
        if not self._signal:
            return
        if not is_distributed() and runner.optim_wrapper.should_update():
            self._save_and_stop(runner, self._signal, runner.iter)
        if seconds >= TIMEOUT:
            self._stop(runner, self._signal, 'while it waited for data, without a checkpoint')

    def while_evaluation_waits(self, runner: Runner, seconds: float) -> None:
        if self._signal and (self._is_saved(runner) or seconds >= TIMEOUT):
            self._stop(runner, self._signal, 'while a validation waited for data')

    def _save_and_stop(self, runner: Runner, signum: int, done: int) -> NoReturn:
        for hook in self._checkpoints:
            hook.save_unscheduled(runner, done)
        self._stop(runner, signum, f'after iteration {done}')

    def _stop(self, runner: Runner, signum: int, place: str) -> NoReturn:
        self.after_train(runner)
        interrupted = Interrupted(signum, place)
        runner.logger.info(f'{STOPPED}{interrupted}')
        raise interrupted

    def _is_saved(self, runner: Runner) -> bool:
        return any(hook.written == runner.iter for hook in self._checkpoints)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        # torchrun forwards a signal that its processes may have received already, so only a single
        # process can recognize a second request.
        is_single = not is_distributed()
        if signum != self._signal or not is_single:
            self._signal, self._received = signum, time.monotonic()
            with suppress(OSError):  # stderr may be closed
                # Not by a logger, which may be in the middle of a line.
                os.write(sys.stderr.fileno(), STOPPING + AT_ONCE * is_single + b'\n')
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        elif time.monotonic() > self._received + REPEAT_WINDOW:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
