"""Keep the tokens of an image and the progress of a run."""

import json
import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..errors import UserError, reason
from ..files import require_no_links, require_writable, write_json, write_whole
from .store import TokenStore
from .windows import length

STATE, LOCK, VERSION = 'state.json', 'store.lock', 1


def is_begun(folder: Path) -> bool:
    """Return whether a folder holds a run that can continue."""
    return (folder / STATE).exists()


class Workspace:
    """Token stores and the number of finished passes, in memory or in a folder.

    A folder outlives a run that is killed: a run with the same image, model and settings continues
    after the last finished pass. An unfinished pass overwrites nothing that is needed to repeat it.

    Args:
        folder: The folder, or None to keep everything in memory.
        identity: The values that have to be the same for a run to continue, by their names in
            messages.

    Attributes:
        finished: The number of finished passes.

    Raises:
        UserError: If the folder cannot be used, is in use, or belongs to a different run.
    """

    def __init__(self, folder: Path | None = None, identity: Mapping[str, Any] = {}) -> None:
        self.folder, self.finished = folder, 0
        if folder is None:
            return
        require_writable(folder)
        require_no_links(folder)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f'--store {folder} is used by another run: name another folder'
            ) from None
        self._identity = json.loads(json.dumps(dict(identity, version=VERSION)))
        state = self._read_state()
        if state is None:
            return
        different = [k for k, v in self._identity.items() if state['identity'].get(k) != v]
        if different:
            self.release()
            raise UserError(
                f'--store {folder} holds an unfinished run with a different '
                f'{" and ".join(different)}: repeat that run, name another folder, or remove this '
                'one'
            )
        self.finished = state['finished']

    def _read_state(self) -> dict[str, Any] | None:
        path = self.folder / STATE
        try:
            return json.loads(path.read_text()) if path.exists() else None
        except (OSError, ValueError) as error:
            raise UserError(
                f'{path} cannot be read ({reason(error)}): remove {self.folder}'
            ) from None

    def require_space(self, size: int) -> None:
        """Refuse a disk without space for ``size`` bytes, including the files of this folder."""
        there = sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if size > there + free:
            raise UserError(
                f'the tokens of the image need {size / 2**30:.1f} GiB in {self.folder}, where '
                f'{(there + free) / 2**30:.1f} GiB are free: name a folder on another disk with '
                '--store DIR'
            )

    def store(
        self,
        name: str,
        rows: slice,
        shape: tuple[int, int],
        dtype: torch.dtype,
        has_to_exist: bool = False,
    ) -> TokenStore:
        """Open or create a store; see :class:`TokenStore`."""
        if self.folder is None:
            return TokenStore(rows, shape, dtype)
        path = self.folder / f'{name}.bin'
        size = length(rows) * math.prod(shape) * dtype.itemsize
        if has_to_exist and not (path.exists() and path.stat().st_size == size):
            raise UserError(
                f'{path} is missing or truncated: remove {self.folder}, and start again'
            )
        return TokenStore(rows, shape, dtype, path)

    def finish(
        self, number: int, store: TokenStore | None = None, sums: Tensor | None = None
    ) -> None:
        """Record that a pass is finished, with the store that it wrote and its sums."""
        self.finished = number
        if self.folder is None:
            return
        if store is not None:
            store.sync()
        if sums is not None:
            with write_whole(self._sums_path(number)) as file:
                np.save(file, sums.cpu().numpy())
        write_json(self.folder / STATE, dict(identity=self._identity, finished=number))

    def sums(self, number: int) -> Tensor:
        """Return the sums of a finished pass."""
        return torch.from_numpy(np.load(self._sums_path(number)))

    def _sums_path(self, number: int) -> Path:
        return self.folder / f'sums_{number % 2}.npy'  # the sums of the previous pass are kept

    def release(self) -> None:
        """Let other runs use the folder, which is kept."""
        if self.folder is not None:
            self._lock.release()

    def remove(self) -> None:
        """Remove the folder of a completed run."""
        self.release()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # it holds other files
                self.folder.parent.rmdir()
