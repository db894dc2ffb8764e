"""Divide the rows of an image among several processes, and exchange data between them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError, UserError, reason
from .store import TokenStore
from .windows import Window, length, overlap, tiles

ROWS = 256  # rows that are sent at a time
# The end of a process is noticed at once, but a slow one, or one that writes, may take long.
PATIENCE = timedelta(days=1)


class Bands:
    """Bands of rows, one for each process of a group; a single process holds the whole image.

    All data is exchanged in the memory of the CPU: the sums of a layer, which are C x C numbers,
    and the rows that a process borrows from its neighbours. All processes have to call each
    method, except for :meth:`share`.

    Args:
        height: Number of rows of the image, in tokens.
        group: The group of processes. Default: all processes, or this one if it is the only one.

    Raises:
        ArgumentError: If there are more processes than rows.
    """

    def __init__(self, height: int, group: dist.ProcessGroup | None = None) -> None:
        self.height = height
        self.rank, self.count, self._group = 0, 1, group
        if dist.is_available() and dist.is_initialized():
            if dist.get_backend(group) != 'gloo':
                self._group = _gloo_group(tuple(dist.get_process_group_ranks(group)))
            self.rank, self.count = dist.get_rank(self._group), dist.get_world_size(self._group)
        if self.count > height:
            raise ArgumentError(
                f'{self.count} processes cannot share an image of {height} rows of tokens: start '
                f'at most {height}'
            )

    @property
    def rows(self) -> slice:
        """The rows of this process."""
        return self.share(self.height)

    def share(self, size: int, rank: int | None = None) -> slice:
        """Return the part of ``size`` rows that this process, or the one of ``rank``, holds."""
        rank = self.rank if rank is None else rank
        return slice(size * rank // self.count, size * (rank + 1) // self.count)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes."""
        if self.count == 1:
            return tensor
        with _dead_processes_named():
            tensor = tensor.cpu()
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def lowest(self, number: int) -> int:
        """Return the smallest of the numbers of all processes."""
        if self.count == 1:
            return number
        with _dead_processes_named():
            tensor = torch.tensor(number)
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._group)
        return int(tensor)

    def highest(self, number: int) -> int:
        """Return the largest of the numbers of all processes."""
        return -self.lowest(-number)

    def gathered(self, content: object) -> list:
        """Return the contents of all processes on the first process, and [] on the others."""
        if self.count == 1:
            return [content]
        contents = [None] * self.count if self.rank == 0 else None
        with _dead_processes_named():
            dist.gather_object(content, contents, self._global(0), group=self._group)
        return contents or []

    def from_first(self, content: object) -> object:
        """Return the content of the first process."""
        if self.count == 1:
            return content
        contents = [content]
        with _dead_processes_named():
            dist.broadcast_object_list(contents, self._global(0), group=self._group)
        return contents[0]

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        self.lowest(0)

    def borrow(self, store: TokenStore, needed: slice) -> None:
        """Copy the ``needed`` rows that other processes hold into ``store.borrowed``."""
        store.borrowed = []
        if self.count == 1:
            return
        own, everywhere = self.rows, slice(0, store.shape[1])
        needs = torch.zeros(self.count, 2, dtype=torch.long)
        needs[self.rank] = torch.tensor([needed.start, needed.stop])
        needs = self.total(needs).tolist()
        sent, transfers = [], []
        with _dead_processes_named():
            for rank in range(self.count):
                if rank == self.rank:
                    continue
                lent = overlap(own, slice(*needs[rank]))
                if length(lent):
                    sent.append(_bytes(store.read(Window(lent, everywhere))))
                    transfers.append(dist.isend(sent[-1], self._global(rank), self._group))
                rows = overlap(needed, self.share(self.height, rank))
                if length(rows):
                    tokens = torch.empty(length(rows), *store.shape[1:], dtype=store.dtype)
                    store.borrowed.append((rows, tokens))
                    buffer = _bytes(tokens)
                    transfers.append(dist.irecv(buffer, self._global(rank), self._group))
            for transfer in transfers:
                transfer.wait()

    def collect(self, store: TokenStore, complete: TokenStore | None) -> None:
        """Copy the rows of all processes into a store of the first process."""
        everywhere = slice(0, store.shape[1])
        with _dead_processes_named():
            for rank in range(self.count):
                owned = self.share(complete.rows.stop, rank) if complete else store.rows
                if self.rank not in (0, rank):
                    continue
                for window in tiles(Window(owned, everywhere), (ROWS, store.shape[1])):
                    if self.rank:
                        dist.send(_bytes(store.read(window)), self._global(0), self._group)
                    elif rank:
                        rows = torch.empty(*window.size, store.shape[2], dtype=store.dtype)
                        dist.recv(_bytes(rows), self._global(rank), self._group)
                        complete.write(window, rows)
                    else:
                        complete.write(window, store.read(window))

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


@cache
def _gloo_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    return dist.new_group(ranks, PATIENCE, 'gloo', use_local_synchronization=True)


def _bytes(tokens: Tensor) -> Tensor:
    return tokens.view(torch.uint8)


@contextmanager
def connected() -> Iterator[bool]:
    """Connect the processes of torchrun within a ``with`` block; yield whether there are any."""
    are_many = int(os.environ.get('WORLD_SIZE', '1')) > 1
    if are_many:
        dist.init_process_group('gloo', timeout=PATIENCE)
    try:
        yield are_many
    finally:
        if are_many:
            dist.destroy_process_group()


@contextmanager
def _dead_processes_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f'another process has ended ({reason(error)}): see its message, and start all '
            'processes again; the finished layers in a store on the disk are kept'
        ) from None
