"""A map that computes one large window at a time, and is differentiated in parts."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...base.geometry import Window
from ..tokens.tape import Tape
from .axes import Axis
from .lazy import LazyMap


class HeldMap(LazyMap):
    """A map that reads its windows from one window of its source, which is computed only once.

    A large window of a coarse map has a small halo and needs little memory. Results at full
    resolution need much memory, so they are computed and differentiated in parts. The gradients of
    the parts add up to the gradient of the window, which :meth:`backward` passes to the source.

    Args:
        source: The map.
    """

    def __init__(self, source: LazyMap) -> None:
        axes = [Axis(n, lambda span: span) for n in source.shape[2:]]
        super().__init__(source.shape[1], axes, source, source.shards, self._part, tape=Tape())
        self._source = source
        self._window: Window | None = None
        self._values = self._gradient = None

    def hold(self, window: Window) -> None:
        """Replace the window, which is computed when a part of it is first read."""
        self._window, self._values, self._gradient = window, None, None

    def backward(self) -> None:
        """Pass the gradients of the parts to the source, and free the graph."""
        if self._gradient is not None:
            self._values.backward(self._gradient)
        self.hold(self._window)

    def tokens_read(self, window: Window) -> Iterator[Window]:
        return self._source.tokens_read(window)

    def _part(self, window: Window) -> Tensor:
        if self._values is None:
            self._values = self._source.read(self._window, {})
        part = (..., *window.within(self._window))
        return self.tape.window(self._values.detach()[part], partial(self._add, part))

    def _add(self, part: tuple, gradient: Tensor) -> None:
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._values)
        self._gradient[part] += gradient
