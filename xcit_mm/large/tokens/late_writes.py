"""Writes of tiles that a GPU computes, one tile later."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...base.device import sent_back
from ...base.geometry import Window
from .token_files import CPU


class LateWrites:
    """Writes the tokens of tiles within a ``with`` block.

    Tokens that a GPU computes and the CPU keeps are copied while the GPU computes the next tile.
    They are written when that tile is passed, or at the end of the block.

    Args:
        write: Writes a tile: its window, the window of it that was computed, and the tokens of that
            window. Both are None if the tile has no data.
        source: The device that computes the tokens.
        target: The device that keeps them.
    """

    def __init__(
        self,
        write: Callable[[Window, Window | None, Tensor | None], None],
        source: torch.device,
        target: torch.device,
    ) -> None:
        self._write, self._is_late = write, source != target and target == CPU
        self._last: Callable[[], None] | None = None

    def __enter__(self) -> 'LateWrites':
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._finish()

    def __call__(self, window: Window, computed: Window | None, tokens: Tensor | None) -> None:
        if not self._is_late or tokens is None:
            self._write(window, computed, tokens)
            return
        copied = sent_back(tokens)
        self._finish()
        self._last = lambda: self._write(window, computed, copied())

    def _finish(self) -> None:
        if self._last is not None:
            self._last()
        self._last = None
