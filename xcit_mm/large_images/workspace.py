"""Keep the tokens of an image and the progress of a run."""

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..errors import ArgumentError, UserError, reason
from ..files import require_no_links, require_writable, write_json, write_whole
from .bands import Bands
from .memory import free_memory
from .store import TokenStore
from .windows import length

STATE, LOCK, VERSION = 'state.json', 'store.lock', 1
GIB = 2**30


def open_workspace(
    needed: int,
    for_tile: int,
    bands: Bands,
    memory: int | None,
    folder: Path | None,
    identity: Callable[[], Mapping[str, Any]] | None = None,
) -> 'Workspace':
    """Return a workspace in memory if the stores fit, otherwise in a folder.

    All processes have to call this function.

    Args:
        needed: Bytes of the stores of this process.
        for_tile: Bytes of the tensors of a tile, which are always in memory.
        bands: The processes that share the image.
        memory: Bytes that both may take in this process. Default: half of the free memory, divided
            by the number of processes on this machine.
        folder: The folder of this process, or None.
        identity: See :class:`Workspace`. A run that has begun in the folder continues there.

    Raises:
        UserError: If the stores do not fit and there is no folder, or if the folder or the free
            space of its disk cannot be used.
    """
    neighbours = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))  # set by torchrun
    limit = free_memory() // 2 // neighbours if memory is None else memory
    has_begun = folder is not None and identity is not None and (folder / STATE).exists()
    if bands.min(needed + for_tile <= limit and not has_begun):
        return Workspace()
    if folder is None:
        raise ArgumentError(
            f'the stores need {needed / GIB:.3g} GiB and a tile needs {for_tile / GIB:.3g} GiB, '
            f'but the limit is {limit / GIB:.3g} GiB: name a folder for the stores with store=DIR'
        )
    workspace = Workspace(folder, identity and identity())
    try:
        workspace.require_space(needed, neighbours)
        bands.barrier()  # which raises the error of another process that cannot use its folder
    except BaseException:
        workspace.release()
        raise
    return workspace


class Workspace:
    """Token stores and the number of finished passes, in memory or in a folder.

    A folder outlives a run that is killed: a run with the same image, model and settings continues
    after the last finished pass. An unfinished pass overwrites nothing that is needed to repeat it.

    Args:
        folder: The folder, or None to keep everything in memory.
        identity: The values that have to be the same for a run to continue, by their names in
            messages. Default: no run continues in this folder.

    Attributes:
        finished: The number of finished passes.

    Raises:
        UserError: If the folder cannot be used, is in use, or belongs to a different run.
    """

    def __init__(
        self, folder: Path | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.finished, self._identity = folder, 0, None
        if folder is None:
            return
        require_writable(folder)
        require_no_links(folder)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f'{folder} is used by another run: name another folder with --store DIR'
            ) from None
        try:
            self._continue(identity)
        except BaseException:
            self.release()
            raise

    def _continue(self, identity: Mapping[str, Any] | None) -> None:
        """Find out how much of the same run is finished in the folder."""
        if identity is None:
            for path in self.folder.glob('*.bin'):  # of a run that was killed
                path.unlink()
            return
        self._identity = json.loads(json.dumps(dict(identity, version=VERSION)))
        state = self._read_state()
        if state is None:
            return
        different = [k for k, v in self._identity.items() if state['identity'].get(k) != v]
        if different:
            raise UserError(
                f'{self.folder} holds an unfinished run that differs in its '
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

    def require_space(self, size: int, processes: int = 1) -> None:
        """Refuse a disk without ``size`` bytes for each process, including those of its folder."""
        free = shutil.disk_usage(self.folder).free // processes
        free += sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        if size > free:
            self.release()
            raise UserError(
                f'the tokens of the image need {size / GIB:.3g} GiB in {self.folder}, where '
                f'{free / GIB:.3g} GiB are free: name a folder on another disk with --store DIR'
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
        if self._identity is None:
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
