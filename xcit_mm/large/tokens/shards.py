"""The rows of an image that each process holds, and the exchange of data between them."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from mmengine.dist import (
    all_reduce,
    broadcast_object_list,
    gather_object,
    get_dist_info,
    get_rank,
    get_world_size,
)
from torch import Tensor

from ...base.errors import ArgumentError
from ...base.geometry import Window, length, overlap, tiles
from ...base.processes import cpu_group, lost_processes_named, share_errors
from .token_files import TokenFile

ROWS = 256  # rows that are sent at a time

Borrowed = list[tuple[slice, Tensor]]  # rows of other processes, and their tokens


class Shards:
    """Shards of rows, one for each process; a single process holds the whole image.

    All data is exchanged in the memory of the CPU: the sums of a layer, which are C x C numbers,
    and the rows that a process borrows from its neighbors. All processes have to call each
    method, except for :meth:`share`. Within :func:`~xcit_mm.base.processes.all_processes`, an error
    of one process is raised in all of them at the next exchange. ``height`` is the number of
    rows of the image, in tokens; more processes than rows are an ArgumentError. ``group`` holds the
    processes that share the image: all of them, which is the default, or this process alone.
    """

    def __init__(self, height: int, group: dist.ProcessGroup | None = None) -> None:
        self.height, self._group = height, group or cpu_group()
        self.rank, self.count = get_dist_info(self._group)
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
        """The name of the folder of this process, which no other process has."""
        if self.count < get_world_size():  # each process has an image of its own
            return f'process_{get_rank() + 1}'
        return f'part_{self.rank + 1}_of_{self.count}'

    def share(self, size: int, rank: int | None = None) -> slice:
        """Return the part of ``size`` rows that this process, or the one of ``rank``, holds."""
        rank = self.rank if rank is None else rank
        return slice(size * rank // self.count, size * (rank + 1) // self.count)

    @lost_processes_named()
    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all processes, in place, and return the sum."""
        share_errors(None, self._group)
        all_reduce(tensor, 'sum', self._group)
        return tensor

    def min(self, number: int) -> int:
        """Return the smallest of the numbers of all processes."""
        return -self.max(-number)

    def max(self, number: int) -> int:
        """Return the largest of the numbers of all processes."""
        return share_errors(None, self._group, number)

    @lost_processes_named()
    def gather(self, content: object) -> list:
        """Return the contents of all processes on the first process, and [] on the others."""
        share_errors(None, self._group)
        return gather_object(content, group=self._group) or []

    @lost_processes_named()
    def broadcast(self, content: object) -> object:
        """Return the content of the first process."""
        share_errors(None, self._group)
        contents = [content]
        broadcast_object_list(contents, group=self._group)
        return contents[0]

    def barrier(self) -> None:
        """Wait until all processes have called this method."""
        share_errors(None, self._group)

    def borrow(self, store: TokenFile, needed: slice) -> Borrowed:
        """Return the ``needed`` rows that other processes hold, for :meth:`.TokenFile.read`."""
        transfers, borrowed = [], []
        for rank, lent, rows in self.exchanged(needed):
            if length(lent):
                tokens = store.read(Window(lent, slice(0, store.shape[1]))).cpu()
                transfers.append((dist.isend, tokens, rank))
            if length(rows):
                tokens = torch.empty(length(rows), *store.shape[1:], dtype=store.dtype)
                borrowed.append((rows, tokens))
                transfers.append((dist.irecv, tokens, rank))
        share_errors(None, self._group)
        self._transfer(transfers)
        return borrowed

    def give_back(self, needed: slice, gradients: Borrowed, store: TokenFile) -> None:
        """Add gradients of the rows that :meth:`borrow` returned to the stores of these rows."""
        transfers, received = [], []
        of_rows = {rows.start: values for rows, values in gradients}
        for rank, lent, rows in self.exchanged(needed):
            if length(lent):
                tokens = torch.empty(length(lent), *store.shape[1:], dtype=store.dtype)
                received.append((lent, tokens))
                transfers.append((dist.irecv, tokens, rank))
            if length(rows):
                transfers.append((dist.isend, of_rows[rows.start], rank))
        share_errors(None, self._group)
        self._transfer(transfers)
        for rows, tokens in received:
            store.add(Window(rows, slice(0, store.shape[1])), tokens)

    def exchanged(self, needed: slice) -> list[tuple[int, slice, slice]]:
        """Return, for each other process, the rows that it needs and the rows that it holds.

        The rows that it needs belong to this process, and the rows that it holds are among the
        ``needed`` rows.
        """
        if self.count == 1:
            return []
        needs = torch.zeros(self.count, 2, dtype=torch.long)
        needs[self.rank] = torch.tensor([needed.start, needed.stop])
        return [
            (
                rank,
                overlap(self.rows, slice(*of_rank)),
                overlap(needed, self.share(self.height, rank)),
            )
            for rank, of_rank in enumerate(self.sum(needs).tolist())
            if rank != self.rank
        ]

    def collect(self, store: TokenFile, complete: TokenFile | None, height: int) -> None:
        """Copy the rows of all processes into a store (``height``, W, C) of the first process."""
        columns = slice(0, store.shape[1])
        for rank in range(self.count):
            for window in tiles(Window(self.share(height, rank), columns), (ROWS, store.shape[1])):
                if self.rank == rank:
                    tokens = store.read(window).cpu()
                elif complete:
                    tokens = torch.empty(*window.size, store.shape[2], dtype=store.dtype)
                share_errors(None, self._group)
                if rank and self.rank == rank:
                    self._transfer([(dist.isend, tokens, 0)])
                elif rank and complete:
                    self._transfer([(dist.irecv, tokens, rank)])
                if complete:
                    complete.write(window, tokens)

    @lost_processes_named()
    def _transfer(self, transfers: list[tuple[Callable, Tensor, int]]) -> None:
        works = [
            transfer(tokens.view(torch.uint8), rank, self._group)
            for transfer, tokens, rank in transfers
        ]
        for work in works:
            work.wait()
