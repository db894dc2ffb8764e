"""The gradients of the tokens of an image, added up over tiles."""

import torch
from torch import Tensor

from ...base.geometry import Window, length, overlap, shifted
from .shards import Shards
from .token_files import TokenFile


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
