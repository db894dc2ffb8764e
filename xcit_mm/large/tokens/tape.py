"""The leaves of the autograd graphs of tiles, and where their gradients go.

The loss of an image is a sum over tiles. Each tile has a graph of its own, which begins at windows
of stored tokens and at sums over whole maps. A :class:`Tape` holds these tensors, its leaves, and
:class:`TokenGradients` add up the gradients of the windows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...base.geometry import Window, length, overlap, shifted
from .shards import Shards
from .token_files import TokenFile


class Tape:
    """The leaves of the graphs of tiles.

    After ``backward()`` of a tile, :meth:`collect` passes on the gradients of its windows. After
    the last tile, :meth:`finish` passes back the gradients of the sums.

    Attributes:
        reads: The maps (:class:`.LazyMap`) that :meth:`finish` reads, with their windows.
    """

    def __init__(self) -> None:
        self._windows: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self._sums: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self.reads: list[tuple[Any, Window]] = []

    def window(self, values: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        """Return a leaf with the values of a window; ``add`` is called with its gradient.

        Without gradients, for example while sums are computed, it returns the values themselves.
        """
        if not torch.is_grad_enabled():
            return values
        leaf = values.detach().requires_grad_()
        self._windows.append((leaf, add))
        return leaf

    def sums(
        self,
        values: Tensor,
        send_back: Callable[[Tensor], None],
        read: tuple[Any, Window],
    ) -> Tensor:
        """Return a leaf with sums over a map, which all tiles share.

        After the last tile, each process calls ``send_back`` with its own gradient. ``send_back``
        must call :meth:`collect` after each tile of its own. ``read`` is the map, and its window,
        that ``send_back`` reads.
        """
        leaf = values.detach().requires_grad_()
        self.reads.append(read)
        self._sums.append((leaf, send_back))
        return leaf

    def collect(self) -> None:
        """Pass on the gradients of the windows of a tile, and forget the windows."""
        for leaf, add in self._windows:
            if leaf.grad is not None:
                add(leaf.grad)
        self._windows.clear()

    def finish(self) -> None:
        """Pass back the gradients of the sums, the last ones first: they may read earlier ones."""
        while self._sums:
            leaf, send_back = self._sums.pop()
            send_back(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
        self.reads.clear()


class TokenGradients:
    """The gradient of tokens (H, W, C), to which windows are added.

    A window may reach into rows of other processes. These rows are kept until :meth:`settle` sends
    them to the processes that hold them.

    Args:
        file: The gradient of the rows of this process, initially 0.
        shards: The rows of each process.

    Attributes:
        is_used: Whether a window was added.
    """

    def __init__(self, file: TokenFile, shards: Shards) -> None:
        self.file, self._shards = file, shards
        self._foreign: list[tuple[slice, Tensor]] = []
        self._needed, self.is_used = shards.rows, False

    def expect(self, needed: slice) -> None:
        """Prepare for windows within the ``needed`` rows."""
        self._needed = needed
        self._foreign = [
            (rows, torch.zeros(length(rows), *self.file.shape[1:], dtype=self.file.dtype))
            for _, _, rows in self._shards.exchanged(needed)
            if length(rows)
        ]

    def add(self, window: Window, values: Tensor) -> None:
        """Add the gradient (h, w, C) of a window."""
        self.is_used = True
        own = overlap(window.rows, self.file.rows)
        if length(own):
            self.file.add(Window(own, window.columns), values[shifted(own, -window.rows.start)])
        for rows, gradient in self._foreign:
            shared = overlap(window.rows, rows)
            if length(shared):
                part = values[shifted(shared, -window.rows.start)]
                gradient[shifted(shared, -rows.start), window.columns] += part.to(gradient)

    def settle(self) -> None:
        """Send the rows of other processes to them. All processes have to call this method."""
        self._shards.give_back(self._needed, self._foreign, self.file)
        for _, gradient in self._foreign:
            gradient.zero_()
