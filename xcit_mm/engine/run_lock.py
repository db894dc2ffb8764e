"""A work dir that one training at a time writes to."""

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from ..errors import UserError, reason
from ..files import require_writable, writing_to

LOCK = 'run.lock'


@contextmanager
def hold(folder: Path, patience: float = 0) -> Iterator[list[str]]:
    """Keep other trainings out of a folder within a ``with`` block.

    The lock ends with this process, however it ends. Processes that it forks have no part in it,
    which is why it is POSIX's: those of ``flock`` live as long as any data worker does.

    Args:
        folder: Where a run is about to write. It is made where it is not there.
        patience: Seconds to wait for a process that holds the folder.

    Yields:
        Sentences for the log: one if the disk has no locks, and nothing keeps others out.

    Raises:
        UserError: If another process holds the folder, with what it wrote of itself; or if the
            folder cannot be written to.
    """
    import fcntl  # not on Windows

    require_writable(folder)
    path = folder / LOCK
    deadline = time.monotonic() + patience
    notes: list[str] = []
    with ExitStack() as stack:
        with writing_to(folder):
            file = stack.enter_context(_opened_lock(path))
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):  # the system's choice of the two
                if time.monotonic() < deadline:
                    time.sleep(1)
                    continue
                file.seek(0)
                raise UserError(
                    f'{folder} is in use by another training ({file.readline().strip()}): wait '
                    'for its end, or name another --work-dir; if that process is gone, remove '
                    f'{path}'
                ) from None
            except OSError as error:
                notes.append(
                    f'The disk of {folder} has no locks ({reason(error)}): see to it that no other '
                    'training writes there.'
                )
                break
        with writing_to(folder):
            file.truncate(0)
            started = time.strftime('%Y-%m-%d %H:%M:%S')
            file.write(f'process {os.getpid()} on {socket.gethostname()}, since {started}\n')
            file.flush()
        yield notes


def _opened_lock(path: Path) -> IO[str]:
    """A regular file, made where there is none; a link could lead to any file of the user.

    Raises:
        UserError: If it is something else.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        descriptor = None
    if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UserError(f'{path} is a link, a folder or a device, not the lock of a run: remove it')
    return os.fdopen(descriptor, 'r+', encoding='utf-8', errors='replace')
