"""Lock files, which the operating system releases when their process ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError


@contextmanager
def only_holder(path: Path, refusal: str, timeout: float = 0) -> Iterator[bool]:
    """Hold a lock file within a ``with`` block.

    Args:
        path: The file, which is created if it is missing.
        refusal: The message of the error if another process holds it.
        timeout: Seconds to wait for the other process.

    Yields:
        Whether the file is locked: some network disks have no locks.

    Raises:
        UserError: If another process holds the file.
    """
    lock = FileLock(path, timeout)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(refusal) from None
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
