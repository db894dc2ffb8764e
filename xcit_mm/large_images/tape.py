"""The tensors at which the autograd graphs of tiles begin, and where their gradients go.

The loss of an image is a sum over tiles. Each tile has a graph of its own, which begins at windows
of stored tokens and at sums over whole maps. A :class:`Tape` keeps these tensors, its leaves.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from .geometry import Window


class Readable(Protocol):
    """A map that is computed from tokens, such as a :class:`.LazyMap`."""

    def tokens_read(self, window: Window) -> Iterator[Window]: ...


class Tape:
    """The leaves of the graphs of tiles.

    After ``backward()`` of a tile, :meth:`collect` adds the gradients of its windows to where they
    belong. After the last tile, :meth:`finish` sends the gradients of the sums back.

    Attributes:
        reads: The maps, and their windows, that :meth:`finish` reads.
    """

    def __init__(self) -> None:
        self._windows: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self._sums: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self.reads: list[tuple[Readable, Window]] = []

    def window(self, values: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        """Return a leaf with the values of a window; ``add`` is called with its gradient.

        Without gradients, such as in the pass of a sum, it returns the values themselves.
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

        ``send_back`` is called with the gradient of this process once all tiles are finished, in
        all processes. It has to call :meth:`collect` after each tile of its own. ``read`` is the
        map, and the window of it, that ``send_back`` reads.
        """
        leaf = values.detach().requires_grad_()
        self.reads.append(read)
        self._sums.append((leaf, send_back))
        return leaf

    def collect(self) -> None:
        """Hand over the gradients of the windows of a tile, and forget them."""
        for leaf, add in self._windows:
            if leaf.grad is not None:
                add(leaf.grad)
        self._windows.clear()

    def finish(self) -> None:
        """Send the gradients of the sums back, the last sums first, because they read others."""
        while self._sums:
            leaf, send_back = self._sums.pop()
            send_back(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
        self.reads.clear()
