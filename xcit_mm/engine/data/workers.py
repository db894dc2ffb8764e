"""Data workers: they end with the training, not before it, and a worker that fails is reported."""

import multiprocessing.queues
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...errors import UserError, reason

MAX_WAIT = 1800  # seconds for a batch: as long as gloo waits for a process
MAX_IDLE = 60  # seconds in which no worker computes or waits for a disk
CHECK_INTERVAL = 1.0  # seconds after which workers that give nothing are looked at
BUSY = 0.05  # seconds of a CPU: an idle worker that looks for signals needs less in MAX_IDLE
RUNNING, WAITING_FOR_DISK = 'R', 'D'  # states of a process in Linux
# How PyTorch's errors of workers begin.
OF_WORKERS = ('DataLoader worker', 'Pin memory thread', 'Too many open files')


class Unsent(NamedTuple):
    """Replaces a batch that a worker could not send."""

    reason: str


class WorkerInit:
    """Workers outlive a signal to the whole group, so that the step can be finished.

    They end when the process that has started them tells them to, or has ended. PyTorch's own
    see that, too, but wait then until the batch that they have ready is read. A batch that cannot
    be sent is replaced by :class:`Unsent`; Python's queues would drop it, and PyTorch would wait.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        multiprocessing.queues.Queue._on_queue_feeder_error = _send_reason
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, 'sigtimedwait'):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            threading.Thread(target=_obey, args=(os.getppid(),), daemon=True).start()
        if self.init is not None:
            self.init(worker)


class Batches(_MultiProcessingDataLoaderIter):
    """PyTorch's iterator over the batches of workers, which says how long it waits for one.

    Args:
        loader: Its method ``wait`` is called every second without a batch, with the seconds since
            the last batch, and since a worker was last seen to do something. Time in which this
            process is stopped does not count. If it raises, the workers are killed.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = weakref.proxy(loader)  # which may keep this iterator
        self._waited = self._idle = self._cpu_time = 0.0
        super().__init__(loader)

    def _try_get_data(self, timeout: float = CHECK_INTERVAL) -> tuple[bool, Any]:
        came, data = super()._try_get_data(timeout)
        if came:
            self._waited = self._idle = 0
        else:
            self._waited += timeout
            self._idle = 0 if self._is_busy() else self._idle + timeout
            try:
                self._loader.wait(self._waited, self._idle)
            except BaseException:
                _kill(self._workers)  # one that stands still would hold up the end of this process
                raise
        return came, data

    def _is_busy(self) -> bool:
        """Whether a worker computes or waits for a disk, or has computed since it last did."""
        cpu_time = cpu_time_of(self._workers)
        if cpu_time is not None and cpu_time <= self._cpu_time + BUSY * len(self._workers):
            return False
        self._cpu_time = cpu_time or self._cpu_time
        return True


def cpu_time_of(workers: Sequence[BaseProcess]) -> float | None:
    """Seconds of a CPU that processes have used, if all of them sleep.

    Returns:
        None if a thread of one of them runs or waits for a disk, if one has started a process, or
        if the system does not say so.
    """
    ticks = 0
    for worker in workers:
        try:
            for thread in Path(f'/proc/{worker.pid}/task').iterdir():
                stat = (thread / 'stat').read_text().rpartition(')')[2].split()
                if stat[0] in (RUNNING, WAITING_FOR_DISK) or (thread / 'children').read_text():
                    return None
                ticks += sum(map(int, stat[11:13]))  # in user mode, in system mode
        except OSError:
            return None
    return ticks / os.sysconf('SC_CLK_TCK')


@contextmanager
def worker_errors() -> Iterator[None]:
    """Turn what PyTorch says of a worker that has died into a UserError.

    A signal says so, at any place of the main thread.

    Raises:
        UserError: With the remedy.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(OF_WORKERS):
            raise
        raise failed(reason(error)) from error


def failed(why: str) -> UserError:
    """The error of processes that cannot load data."""
    return UserError(
        f'the processes that load data have failed ({why}): they need memory, and room in /dev/shm '
        '(docker run --shm-size=8g); num_workers=0 of the dataloader does without them'
    )


def _send_reason(queue: multiprocessing.queues.Queue, error: Exception, item: Any) -> None:
    number, _ = item
    queue.put((number, Unsent(reason(error))))


def _kill(workers: Sequence[BaseProcess]) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    # PyTorch's handler would make an error of their end.
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if is_main else None
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
    if is_main:
        signal.signal(signal.SIGCHLD, before)


def _obey(parent: int) -> None:
    told = None
    while os.getppid() == parent and (told is None or told.si_pid != parent):
        told = signal.sigtimedwait([signal.SIGTERM], 1)
    os._exit(0)
