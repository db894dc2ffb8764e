"""The leaves of the autograd graphs of tiles, and the destinations of their gradients.

The loss of an image is a sum over tiles. Each tile has a graph of its own, which begins at windows
of stored tokens and at sums over whole maps. A :class:`Tape` holds these tensors, its leaves.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from ...base.geometry import Window


class Readable(Protocol):
    """A map that is computed from tokens, such as a :class:`.LazyMap`."""

    def tokens_read(self, window: Window) -> Iterator[Window]: ...


class Tape:
    """The leaves of the graphs of tiles.

    After ``backward()`` of a tile, :meth:`collect` passes on the gradients of its windows. After
    the last tile, :meth:`finish` passes back the gradients of the sums.

    Attributes:
        reads: The maps that :meth:`finish` reads, with their windows.
    """

    def __init__(self) -> None:
        self._windows: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self._sums: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self.reads: list[tuple[Readable, Window]] = []

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
        read: tuple[Readable, Window],
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
