"""Data workers: they end with the training, not before it, and a failed worker is reported."""

import multiprocessing
import multiprocessing.queues
import os
import signal
import threading
import weakref
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...errors import UserError, reason

CHECK_INTERVAL = 1.0  # seconds between two looks at workers that give no batch
# How PyTorch's errors about workers start.
WORKER_ERRORS = ('DataLoader worker', 'Pin memory thread', 'Too many open files')


def start_fork_server(module: str) -> None:
    """Start the process that forks the workers, while the model is still being built.

    A fork of the training itself may copy a lock that one of its threads holds, and hang.

    Args:
        module: A module that the workers need, such as that of the dataset, to be imported once.
    """
    if multiprocessing.get_start_method() != 'forkserver':
        return
    multiprocessing.set_forkserver_preload(['xcit_mm.engine', module])
    if hasattr(signal, 'pthread_sigmask'):  # the server, and so its workers, outlive a SIGTERM
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Unsent(NamedTuple):
    """Replaces a batch that a worker could not send."""

    reason: str


class WorkerInit:
    """Let a worker outlive a signal to the whole process group, so that the step can be finished.

    A worker ends when the training tells it to or has ended. PyTorch's own workers notice that
    only when the batch that they hold is read. A batch that cannot be sent is replaced by
    :class:`Unsent`; Python's queues would drop it, and the training would wait for it.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init
        self.training = os.getpid()

    def __call__(self, worker: int) -> None:
        multiprocessing.queues.Queue._on_queue_feeder_error = _send_reason
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, 'sigtimedwait'):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            args = (self.training, os.getppid())
            threading.Thread(target=_end_with_the_training, args=args, daemon=True).start()
        if self.init is not None:
            self.init(worker)


class Batches(_MultiProcessingDataLoaderIter):
    """PyTorch's iterator over the batches of workers, which counts how long it waits for one.

    Args:
        loader: Its method ``wait`` is called every second without a batch with the seconds since
            the last batch, not counting those in which this process is stopped. If it raises, the
            workers are killed.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = weakref.proxy(loader)  # the loader may keep this iterator
        self._waited = 0.0
        super().__init__(loader)
        self._timeout = 0  # PyTorch would not look at the workers before its end

    def _try_get_data(self, timeout: float = CHECK_INTERVAL) -> tuple[bool, Any]:
        has_come, data = super()._try_get_data(timeout)
        self._waited = 0 if has_come else self._waited + timeout
        if not has_come:
            try:
                self._loader.wait(self._waited)
            except BaseException:
                for worker in self._workers:  # one that is stopped would never end
                    worker.kill()
                raise
        return has_come, data


def is_of_workers(error: Exception) -> bool:
    """Return whether PyTorch or the system raised an error about workers."""
    return isinstance(error, OSError) or str(error).startswith(WORKER_ERRORS)


def worker_error(why: str) -> UserError:
    """Return the error of workers that cannot load data."""
    return UserError(
        f'the processes that load data have failed ({why}): they need memory, and room in /dev/shm '
        '(docker run --shm-size=8g); num_workers=0 of the dataloader loads without them'
    )


def _send_reason(queue: multiprocessing.queues.Queue, error: Exception, item: Any) -> None:
    number, _ = item
    queue.put((number, Unsent(reason(error))))


def _end_with_the_training(training: int, parent: int) -> None:
    sender = None
    while os.getppid() == parent and sender != training:
        info = signal.sigtimedwait([signal.SIGTERM], 1)
        sender = info and info.si_pid
    os._exit(0)
