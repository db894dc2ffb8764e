"""Data workers that end with the training, not before it, and whose failures are reported."""

import multiprocessing
import multiprocessing.queues
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...base.environment import variables
from ...base.errors import reason
from . import PRELOAD

# Ctrl-C, and Ctrl-Break on Windows: the terminal sends them to the workers as well.
INTERRUPTIONS = [getattr(signal, name) for name in ('SIGINT', 'SIGBREAK') if hasattr(signal, name)]
RECEIVES_SIGNALS = hasattr(signal, 'sigtimedwait')  # with their senders: not on Windows and macOS
SHARED_BYTES = 2**16  # from which an array is sent in shared memory
SHARED_DTYPES = tuple(map(np.dtype, ('bool', 'uint8', 'int32', 'int64', 'float32', 'float64')))
CHECK_INTERVAL = 1.0  # seconds between two looks at workers that have no batch


def start_fork_server(module: str) -> None:
    """Start the process that forks the workers, and import ``module``, the dataset's, in it.

    A fork of the training itself may copy a lock that one of its threads holds, and hang.
    """
    if multiprocessing.get_start_method() != 'forkserver':
        return
    from multiprocessing import forkserver, resource_tracker  # not on every system

    multiprocessing.set_forkserver_preload(['xcit_mm.train.data.preload'])
    resource_tracker.ensure_running()  # the server starts it, too, and it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    # Before Python 3.13 the server does not have the path of this process.
    path = os.pathsep.join(filter(None, sys.path))
    try:
        with variables({PRELOAD: module, 'PYTHONPATH': path}):
            forkserver.ensure_running()  # it and its workers outlive both, also while they import
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def init_worker(init: Callable[[int], None] | None, training: int, worker: int) -> None:
    """Make a worker outlive a signal to the whole process group, so that the step can be finished.

    A worker ends when the training, the process with that number, tells it to or has ended.
    PyTorch's own workers notice that only when the batch that they hold is read. A worker also ends
    if it cannot send a batch; Python's queues would drop it, and the training would wait for it.
    Large arrays are sent in shared memory.
    """
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_exit)
    ForkingPickler.register(np.ndarray, _reduce_array)
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)
    if RECEIVES_SIGNALS:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    args = (training, os.getppid())
    threading.Thread(target=_end_with_the_training, args=args, daemon=True).start()
    if init is not None:
        init(worker)


class Batches(_MultiProcessingDataLoaderIter):
    """PyTorch's iterator over the batches of workers, which counts how long it waits for one.

    Calls ``loader.wait`` every second with the seconds since the last batch, except for the time in
    which this process is stopped. If that raises, the workers are killed.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = weakref.proxy(loader)  # the loader may keep this iterator
        self._waited = 0.0
        super().__init__(loader)
        self._timeout = 0  # PyTorch would not look at the workers before its end

    def _try_get_data(self, timeout: float = CHECK_INTERVAL) -> tuple[bool, Any]:
        has_arrived, data = super()._try_get_data(timeout)
        self._waited = 0 if has_arrived else self._waited + timeout
        if not has_arrived:
            try:
                self._loader.wait(self._waited)
            except BaseException:
                _remove_worker_pids(id(self))  # or PyTorch would turn their end into an error
                self._worker_pids_set = False
                for worker in self._workers:  # a stopped worker would never end
                    worker.kill()
                raise
        return has_arrived, data


def _reduce_array(array: np.ndarray) -> tuple:
    """Reduce a large array, such as the masks of mmdet, to a tensor, which is in shared memory.

    Its values would go through a pipe, and both ends of it would copy them.
    """
    if array.nbytes < SHARED_BYTES or array.dtype not in SHARED_DTYPES:
        return array.__reduce_ex__(2)
    return torch.Tensor.numpy, (torch.from_numpy(np.ascontiguousarray(array)),)


def _exit(error: Exception, batch: Any) -> None:
    print(f'A data worker cannot send a batch: {reason(error)}', file=sys.stderr, flush=True)
    os._exit(1)


def _end_with_the_training(training: int, parent: int) -> None:
    """Exit when the training has ended, or at its SIGTERM if the system says who sent a signal.

    The parent is the training, or the fork server, which lives as long as any of its workers.
    """
    sender, process = None, multiprocessing.parent_process()
    while os.getppid() == parent and process.is_alive() and sender != training:
        if RECEIVES_SIGNALS:
            info = signal.sigtimedwait([signal.SIGTERM], 1)
            sender = info and info.si_pid
        else:
            process.join(1)
    os._exit(0)
