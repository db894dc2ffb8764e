"""The tensors at which the autograd graphs of tiles begin, and where their gradients go.

The loss of an image is a sum over tiles. Each tile has a graph of its own, which begins at windows
of stored tokens and at sums over whole maps. A :class:`Tape` keeps these tensors, its leaves.
"""

from collections.abc import Callable

from torch import Tensor


class Tape:
    """The leaves of the graphs of tiles.

    After ``backward()`` of a tile, :meth:`collect` adds the gradients of its windows to where they
    belong. After the last tile, :meth:`finish` sends the gradients of the sums back.
    """

    def __init__(self) -> None:
        self._windows: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        self._sums: list[tuple[Tensor, Callable[[Tensor], None]]] = []

    def window(self, values: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        """Return a leaf with the values of a window; ``add`` is called with its gradient."""
        leaf = values.detach().requires_grad_()
        self._windows.append((leaf, add))
        return leaf

    def sums(self, values: Tensor, send_back: Callable[[Tensor], None]) -> Tensor:
        """Return a leaf with sums over a map, which all tiles share.

        ``send_back`` is called with the gradient of this process once all tiles are finished, in
        all processes. It has to call :meth:`collect` after each tile of its own.
        """
        leaf = values.detach().requires_grad_()
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
            send_back(leaf.new_zeros(leaf.shape) if leaf.grad is None else leaf.grad)
