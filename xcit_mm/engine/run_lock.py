"""Keep a second training out of a work dir."""

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mmengine.config import Config

from ..errors import UserError, reason
from ..files import require_writable, writing_to
from .distributed import is_first_process, was_restarted

LOCK = 'run.lock'
# Seconds that a restarted job waits for the lock of a lost machine: NFS needs 90 to release it.
PATIENCE = 120


@contextmanager
def run_lock(cfg: Config) -> Iterator[list[str]]:
    """Hold the work dir of a training within a ``with`` block; only the first process does.

    The lock ends with the process, however it ends. It is a lock of POSIX because child processes
    do not inherit these: a lock of ``flock`` would live as long as any data worker.

    Yields:
        Sentences for the log: a warning if the file system has no locks.

    Raises:
        UserError: If another process holds the folder, with what it wrote into the lock file.
    """
    if not is_first_process(cfg.launcher):
        yield []
        return
    folder = Path(cfg.work_dir)
    require_writable(folder)
    with writing_to(folder):
        file = _open_lock(folder / LOCK)
    with file:
        notes = _acquire(file, folder, PATIENCE if was_restarted() else 0)
        with writing_to(folder):
            file.truncate(0)
            started = time.strftime('%Y-%m-%d %H:%M:%S')
            file.write(f'process {os.getpid()} on {socket.gethostname()}, since {started}\n')
            file.flush()
        yield notes


def _acquire(file: IO[str], folder: Path, patience: float) -> list[str]:
    import fcntl  # not on Windows

    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return []
        except (BlockingIOError, PermissionError):  # which of them depends on the system
            if time.monotonic() < deadline:
                time.sleep(1)
                continue
            raise UserError(
                f'{folder} is in use by another training ({file.readline().strip()}): wait for its '
                'end, or name another --work-dir; if that process is gone, remove '
                f'{folder / LOCK}'
            ) from None
        except OSError as error:
            return [
                f'The disk of {folder} has no locks ({reason(error)}): make sure that no other '
                'training writes there.'
            ]


def _open_lock(path: Path) -> IO[str]:
    """Open or make a regular file; a link could lead to any file of the user."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        descriptor = None
    if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UserError(f'{path} is a link, a folder or a device, not the lock of a run: remove it')
    return os.fdopen(descriptor, 'r+', encoding='utf-8', errors='replace')
