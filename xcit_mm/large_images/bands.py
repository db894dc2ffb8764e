"""Divide the rows of an image among several processes, and exchange data between them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from mmengine.dist import all_reduce, broadcast_object_list, gather_object, get_dist_info
from torch import Tensor

from ..errors import ArgumentError, UserError, reason
from .store import TokenStore
from .windows import Window, length, overlap, tiles

ROWS = 256  # rows that are sent at a time
# A crashed process is noticed at once, but one that is writing its result may take hours.
PATIENCE = timedelta(days=1)


@contextmanager
def _dead_processes_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f'another process has ended ({reason(error)}): see its message, and start all '
            'processes again; a prediction with a store on the disk continues there'
        ) from None


class Bands:
    """Bands of rows, one for each process; a single process holds the whole image.

    All data is exchanged in the memory of the CPU: the sums of a layer, which are C x C numbers,
    and the rows that a process borrows from its neighbours. All processes have to call each
    method, except for :meth:`share`.

    Args:
        height: Number of rows of the image, in tokens.

    Raises:
        ArgumentError: If there are more processes than rows.
    """

    def __init__(self, height: int) -> None:
        self.height, self._group = height, None
        self.rank, self.count = get_dist_info()
        if self.count > 1 and dist.get_backend() != 'gloo':
            self._group = _gloo_group(dist.group.WORLD)
        if self.count > height:
            raise ArgumentError(
                f'{self.count} processes cannot share an image of {height} rows of tokens: start '
                f'at most {height}'
            )

    @property
    def rows(self) -> slice:
        """The rows of this process."""
        return self.share(self.height)

    @property
    def part(self) -> str:
        """The name of the folder of this process."""
        return f'part_{self.rank + 1}_of_{self.count}'

    def share(self, size: int, rank: int | None = None) -> slice:
        """Return the part of ``size`` rows that this process, or the one of ``rank``, holds."""
        rank = self.rank if rank is None else rank
        return slice(size * rank // self.count, size * (rank + 1) // self.count)

    @_dead_processes_named()
    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all processes, in place, and return the sum."""
        all_reduce(tensor, 'sum', self._group)
        return tensor

    @_dead_processes_named()
    def min(self, number: int) -> int:
        """Return the smallest of the numbers of all processes."""
        tensor = torch.tensor(number)
        all_reduce(tensor, 'min', self._group)
        return int(tensor)

    def max(self, number: int) -> int:
        """Return the largest of the numbers of all processes."""
        return -self.min(-number)

    @_dead_processes_named()
    def gather(self, content: object) -> list:
        """Return the contents of all processes on the first process, and [] on the others."""
        return gather_object(content, group=self._group) or []

    @_dead_processes_named()
    def broadcast(self, content: object) -> object:
        """Return the content of the first process."""
        contents = [content]
        broadcast_object_list(contents, group=self._group)
        return contents[0]

    def barrier(self) -> None:
        """Wait until all processes have called this method."""
        self.min(0)

    def borrow(self, store: TokenStore, needed: slice) -> None:
        """Copy the ``needed`` rows that other processes hold into ``store.borrowed``."""
        store.borrowed = []
        if self.count == 1:
            return
        needs = torch.zeros(self.count, 2, dtype=torch.long)
        needs[self.rank] = torch.tensor([needed.start, needed.stop])
        needs = self.sum(needs).tolist()
        transfers = []
        for rank in range(self.count):
            if rank == self.rank:
                continue
            lent = overlap(self.rows, slice(*needs[rank]))
            if length(lent):
                tokens = store.read(Window(lent, slice(0, store.shape[1])))
                transfers.append((dist.isend, tokens, rank))
            rows = overlap(needed, self.share(self.height, rank))
            if length(rows):
                tokens = torch.empty(length(rows), *store.shape[1:], dtype=store.dtype)
                store.borrowed.append((rows, tokens))
                transfers.append((dist.irecv, tokens, rank))
        self._transfer(transfers)

    def collect(self, store: TokenStore, complete: TokenStore | None) -> None:
        """Copy the rows of all processes into a store of the first process."""
        columns = slice(0, store.shape[1])
        for rank in range(self.count):
            if self.rank not in (0, rank):
                continue
            rows = self.share(complete.rows.stop, rank) if complete else store.rows
            for window in tiles(Window(rows, columns), (ROWS, store.shape[1])):
                if self.rank == rank:
                    tokens = store.read(window)
                else:
                    tokens = torch.empty(*window.size, store.shape[2], dtype=store.dtype)
                    self._transfer([(dist.irecv, tokens, rank)])
                if complete:
                    complete.write(window, tokens)
                else:
                    self._transfer([(dist.isend, tokens, 0)])

    @_dead_processes_named()
    def _transfer(self, transfers: list[tuple[Callable, Tensor, int]]) -> None:
        works = [
            transfer(tokens.view(torch.uint8), rank, self._group)
            for transfer, tokens, rank in transfers
        ]
        for work in works:
            work.wait()


@cache
def _gloo_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    return dist.new_group(timeout=PATIENCE, backend='gloo')


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
