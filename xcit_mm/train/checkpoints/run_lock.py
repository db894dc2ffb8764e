"""The lock that keeps a second training run out of a work dir."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mmengine.config import Config

from ...base.errors import UserError, reason
from ...base.files import require_writable, writing_to
from ...base.launchers import is_first_process, was_restarted
from ...base.locks import open_lock, read_holder, try_lock, unlocking, write_holder

LOCK = 'run.lock'
# Seconds that a restarted job waits for the lock of a lost machine: NFS needs 90 to release it.
PATIENCE = 120


@contextmanager
def run_lock(cfg: Config) -> Iterator[list[str]]:
    """Hold the work dir of a training run within a ``with`` block; only the first process does.

    Yields sentences for the log: a warning if the file system has no locks. Raises a UserError if
    another process holds the folder, with what that process wrote into the lock file.
    """
    if not is_first_process(cfg.launcher):
        yield []
        return
    folder = Path(cfg.work_dir)
    require_writable(folder)
    with writing_to(folder):
        file = open_lock(folder / LOCK)
    with unlocking(file):
        with writing_to(folder):
            warnings = _acquire(file, folder)
            started = time.strftime('%Y-%m-%d %H:%M:%S')
            write_holder(file, f'process {os.getpid()} on {socket.gethostname()}, since {started}')
        yield warnings


def _acquire(file: IO[str], folder: Path) -> list[str]:
    deadline = time.monotonic() + (PATIENCE if was_restarted() else 0)
    while True:
        try:
            if try_lock(file):
                return []
        except OSError as error:
            return [
                f'The disk of {folder} has no locks ({reason(error)}): make sure that no other '
                'training run writes there.'
            ]
        if time.monotonic() >= deadline:
            break
        time.sleep(1)
    raise UserError(
        f'{folder} is in use by another training run ({read_holder(file)}): wait for its '
        f'end, or name another --work-dir; if that process is gone, remove {folder / LOCK}'
    )
