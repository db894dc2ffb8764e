"""Processes that load data: they end with the training, and not before it."""

import os
import signal
from collections.abc import Callable
from threading import Thread


class WorkerInit:
    """Workers outlive a signal to the whole group, so that the step can be finished.

    They end when the process that has started them tells them to, or has ended. PyTorch's own
    see that, too, but wait then for somebody to read the batch that they have ready.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, 'sigtimedwait'):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            Thread(target=_obey, args=(os.getppid(),), daemon=True).start()
        if self.init is not None:
            self.init(worker)


def _obey(parent: int) -> None:
    told = None
    while os.getppid() == parent and (told is None or told.si_pid != parent):
        told = signal.sigtimedwait([signal.SIGTERM], 1)
    os._exit(0)
