"""Locks on files, which the operating system releases when their process ends."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import lock_descriptor, unlock_descriptor

LOCKED_BYTES = 1  # Windows lets nobody else read them


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock it, and make it if it is missing. A link is refused by an OSError."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    flags = os.O_RDWR | os.O_CREAT | getattr(os, 'O_NOFOLLOW', 0)  # the flag is not on Windows
    return os.fdopen(os.open(path, flags, 0o666), 'r+', encoding='utf-8', errors='replace')


def try_lock(file: IO[str]) -> bool:
    """Lock a file of :func:`open_lock`, and return False if another process holds it.

    Raises:
        OSError: If its disk has no locks.
    """
    return lock_descriptor(file.fileno(), blocking=False)


def is_there(file: IO[str], path: Path) -> bool:
    """Return whether an open file still has its name, which the last holder may have removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def unlocking(file: IO[str]) -> Iterator[None]:
    """Unlock and close a file at the end of a ``with`` block.

    Closing alone would leave it locked for as long as a fork of this process lives.
    """
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # a disk without locks
                unlock_descriptor(file.fileno())


def write_holder(file: IO[str], text: str) -> None:
    """Write a line that the other processes can read while this one holds the lock."""
    file.truncate(0)
    file.write(' ' * LOCKED_BYTES + f'{text}\n')
    file.flush()


def read_holder(file: IO[str]) -> str:
    """Return the line of the process that holds the lock."""
    file.seek(LOCKED_BYTES)
    return file.readline().strip()
