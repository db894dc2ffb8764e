"""The lock that keeps a second training run out of a work dir."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mmengine.config import Config

from ...base.files import require_writable
from ...base.launchers import is_first_process, was_restarted
from ...base.locks import only_holder

LOCK = 'run.lock'
# Seconds that a restarted job waits for the lock of a lost machine: NFS needs 90 to release it.
TIMEOUT = 120


def run_lock(cfg: Config) -> AbstractContextManager:
    """Hold the work dir of a training run within a ``with`` block; only the first process does.

    Raises:
        UserError: If the folder cannot be written to, or another process holds it.
    """
    if not is_first_process(cfg.launcher):
        return nullcontext()
    folder = Path(cfg.work_dir)
    require_writable(folder)
    refusal = (
        f'{folder} is in use by another training run: wait for its end, or name another '
        f'--work-dir; if no such process is left, remove {folder / LOCK}'
    )
    return only_holder(folder / LOCK, refusal, TIMEOUT if was_restarted() else 0)
