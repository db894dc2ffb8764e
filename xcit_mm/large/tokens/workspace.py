"""The files and the progress of a run on a large image."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock, Timeout

from ...base.errors import ArgumentError, UserError, reason
from ...base.files import (
    DISK_FULL,
    read_regular,
    remove_unfinished,
    require_writable,
    write_json,
    write_whole,
)
from ...base.free_memory import free_device_memory, free_memory
from ...base.geometry import Span
from .shards import Shards
from .token_files import CPU, TokenFile, damaged

STATE, LOCK, VERSION = 'state.json', 'store.lock', 3
MAX_STATE = 2**20  # bytes
# The files of a workspace. All other files in its folder are left alone.
FILES = re.compile(
    r'state\.json|store\.lock|(layer|gradient)_\d+\.bin|objects_\d+\.npz|'
    r'((all|scene)_)?(labels|scores|probabilities|heights)\.bin'
)
# The process in the name of its folder; see ``Shards.part``.
NUMBERED = re.compile(r'(part|process)_\d+')
GIB = 2**30
BLOCK = 512  # bytes; of a file with holes, not all blocks are on the disk
DEVICE_SHARE = 0.75  # of the free memory of a GPU; heads and other programs need some, too


class Demand(NamedTuple):
    """The bytes that a process needs.

    Attributes:
        files: For its token files.
        tile: For the tensors of a tile.
        tokens: The part of ``files`` that may be in the memory of a GPU instead.
        device: The device that computes the tiles.
    """

    files: int
    tile: int = 0
    tokens: int = 0
    device: torch.device = CPU

    @property
    def of_memory(self) -> int:
        """The bytes of the CPU's memory without a folder if no token is on a GPU.

        Copies of tiles on their way to a GPU need about as much as a tile on a CPU.
        """
        return self.files + self.tile

    @property
    def fits_device(self) -> bool:
        """Whether the tokens and a tile fit into this process's share of a GPU's free memory."""
        if not self.is_on_gpu:
            return False
        sharing = -(-_processes_here() // max(1, torch.cuda.device_count()))
        free = free_device_memory(self.device) // sharing
        return self.tokens + self.tile <= DEVICE_SHARE * free

    @property
    def is_on_gpu(self) -> bool:
        return free_device_memory(self.device) is not None


def open_workspace(
    demand: Demand,
    shards: Shards,
    memory: int | None,
    folder: Path | None,
    identity: Callable[[], Mapping[str, Any]] | None = None,
) -> 'Workspace':
    """Return a workspace in memory if the demand of each process fits, otherwise in a folder.

    Tokens that fit into the free memory of a GPU are kept there, if everything else fits into
    ``memory``. All processes have to call this function.

    Args:
        demand: The tensors of a tile are always in memory, or on the GPU.
        shards: The processes that share the image.
        memory: See :func:`memory_limit`.
        folder: The folder of this process, or None.
        identity: See :class:`Workspace`. A run that has begun in the folder continues there.

    Raises:
        UserError: If the demand does not fit and there is no folder, or if the folder or the free
            space of its disk cannot be used.
    """
    limit = memory_limit(memory)
    has_begun = folder is not None and identity is not None and os.path.lexists(folder / STATE)
    rest = demand.files - demand.tokens
    if shards.min(demand.fits_device and rest <= limit and not has_begun):
        return Workspace(device=demand.device)
    if shards.min(demand.of_memory <= limit and not has_begun):
        return Workspace()
    if folder is None:
        files, tile, limit = (f'{n / GIB:.3g} GiB' for n in (*demand[:2], limit))
        raise ArgumentError(
            f'the stores need {files} and a tile needs {tile}, but the limit is {limit}: name a '
            'folder for the stores with store=DIR (--store DIR, or stream.store in a config)'
        )
    workspace = Workspace(folder, identity and identity(), demand.files)
    try:
        shards.barrier()  # which raises the error of another process that cannot use its folder
    except BaseException:
        workspace.release()
        raise
    return workspace


def memory_limit(memory: int | None) -> int:
    """Return ``memory``, or by default half of the free memory for each process of this machine."""
    return free_memory() // 2 // _processes_here() if memory is None else memory


def free_disk(folder: Path) -> int:
    """Return the bytes that each process of this machine can write into its folder.

    The files in the folders of all processes count as free, because they are overwritten or removed
    before the next image: the result is the same whatever the other processes have written so far.
    """
    written = 0
    for of_process in folder.parent.glob(NUMBERED.sub(r'\1_*', folder.name)):
        with suppress(FileNotFoundError):  # another process has just removed its folder
            for path in _files(of_process):
                with suppress(FileNotFoundError):  # or this file
                    status = path.stat()
                    blocks = getattr(status, 'st_blocks', None)  # not on Windows
                    written += status.st_size if blocks is None else blocks * BLOCK
    return (shutil.disk_usage(folder).free + written) // _processes_here()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a workspace in a folder."""
    return (path for path in folder.iterdir() if FILES.fullmatch(path.name))


def _processes_here() -> int:
    return int(os.environ.get('LOCAL_WORLD_SIZE', '1'))  # set by torchrun


class Workspace:
    """The token files and the progress of a run in its stages, in memory or in a folder.

    A folder outlives a run that is killed: a run with the same image, model and settings continues
    after what is finished. What is not finished overwrites nothing that is needed to repeat it.

    Args:
        folder: The folder, or None to keep everything in memory.
        identity: The values that have to be the same for a run to continue, by their names in
            messages. Default: no run continues in this folder.
        needed: Bytes of all files that the run writes.

    Attributes:
        finished: How much of each stage is finished, such as the number of passes.

    Raises:
        UserError: If the folder cannot be used, is in use, is damaged, or belongs to a different
            run, or if its disk has too little free space.
    """

    def __init__(
        self,
        folder: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        needed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.folder, self.finished, self._device = folder, Counter(), device
        self._tokens: list[TokenFile] = []  # in memory
        self._identity = None
        if folder is None:
            return
        require_writable(folder)
        for path in _files(folder):  # which would be written through a link of someone else
            if path.is_symlink():
                raise UserError(f'{path} is a link: remove it, or name another folder')
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f'{folder} is used by another run: name another folder with --store DIR, '
                'or stream.store in a config'
            ) from None
        try:
            remove_unfinished(folder)
            self._continue(identity)
            self._require_space(needed)
        except BaseException:
            self.release()
            raise

    def _continue(self, identity: Mapping[str, Any] | None) -> None:
        """Determine how much of the same run is finished in the folder."""
        if identity is None:
            self._remove_files()  # of a run that was killed
            return
        self._identity = json.loads(json.dumps(dict(identity, version=VERSION)))
        if not (self.folder / STATE).exists():
            return
        try:
            state = json.loads(read_regular(self.folder / STATE, MAX_STATE))
            identity, self.finished = state['identity'], Counter(state['finished'])
            different = [k for k, v in self._identity.items() if identity.get(k) != v]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise damaged(self.folder / STATE, f'cannot be read ({reason(error)})') from None
        if different:
            raise UserError(
                f'{self.folder} holds an unfinished run that differs in its '
                f'{" and ".join(different)}: repeat that run, name another folder, or remove this '
                'one'
            )

    def _require_space(self, needed: int) -> None:
        """Refuse a disk that is too small for the files of all processes."""
        free = free_disk(self.folder)
        if needed > free:
            raise UserError(
                f'the tokens of the image need {needed / GIB:.3g} GiB in {self.folder}, where '
                f'{free / GIB:.3g} GiB are free: name a folder on another disk '
                'with --store DIR, or stream.store in a config'
            )

    def open(
        self,
        name: str,
        rows: Span,
        shape: tuple[int, int],
        dtype: torch.dtype,
        is_finished: bool = False,
        are_tokens: bool = False,
    ) -> TokenFile:
        """Create a file of tokens or results, or open one that :meth:`finish` has recorded.

        Without a folder, tokens are on the device of the workspace, and results on the CPU.
        """
        if self.folder is None:
            file = TokenFile(rows, shape, dtype, device=self._device if are_tokens else CPU)
            if are_tokens:
                self._tokens.append(file)
            return file
        path = self.folder / f'{name}.bin'
        with self._writing():
            return TokenFile(rows, shape, dtype, path, is_finished and self._identity is not None)

    def rewind(self, stage: str, number: int) -> None:
        """Forget all progress except a ``number`` of a stage."""
        self.finished = Counter({stage: number})

    def finish(self, stage: str, number: int, *files: TokenFile) -> None:
        """Record how much of a stage is finished, with the files that it wrote."""
        self.finished[stage] = number
        if self._identity is None:
            return
        with self._writing():
            for file in files:
                file.sync()
            write_json(self.folder / STATE, dict(identity=self._identity, finished=self.finished))

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays that :meth:`load` returns once the next :meth:`finish` has recorded them."""
        if self._identity is not None:
            with self._writing(), write_whole(self.folder / f'{name}.npz') as file:
                np.savez(file, **arrays)

    def load(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of :meth:`save`."""
        path = self.folder / f'{name}.npz'
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, BadZipFile) as error:
            raise damaged(path, f'cannot be read ({reason(error)})') from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Explain why a file cannot be written, unless the disk is full, as the tools know."""
        try:
            yield
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            raise UserError(
                f'{self.folder} cannot be written to ({reason(error)}): start again, with another '
                'folder if this one is gone'
            ) from None

    def release(self) -> None:
        """Release the folder to other runs, and keep its files; forget tokens in memory."""
        for file in self._tokens:
            file.forget()
        self._tokens.clear()
        if self.folder is not None:
            self._lock.release()

    def remove(self) -> None:
        """Remove the files of a completed run, and the folder and its parent if they are empty."""
        if self.folder is not None:
            with suppress(OSError):  # the folders hold other files, or are gone
                self._remove_files()
                (self.folder / LOCK).unlink()
                self.folder.rmdir()
                self.folder.parent.rmdir()
        self.release()

    def _remove_files(self) -> None:
        (self.folder / STATE).unlink(missing_ok=True)  # first: nobody continues with the rest
        for path in _files(self.folder):
            if path.name != LOCK:
                path.unlink()
