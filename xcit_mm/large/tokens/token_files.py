"""Files of the tokens of an image, which are read and written by windows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.device import sent_back
from ...base.errors import UserError, reason
from ...base.files import allocate, synchronize
from ...base.geometry import Span, Window, length, overlap, shifted

CPU = torch.device('cpu')


class TokenFile:
    """Rows of tokens (H, W, C), in memory, or in a file if ``path`` is not None.

    Only the windows that are read or written are mapped into memory, so a file does not count as
    memory of the process. Tokens in the memory of a GPU are read and written without waiting for
    it.

    Args:
        rows: The rows of the image that this process holds.
        shape: (W, C).
        exists: Whether the file exists, with all of its rows. Default: a new file.
        device: Where the tokens are, if they are in memory.

    Raises:
        UserError: If an existing file is missing or has another size.
    """

    def __init__(
        self,
        rows: Span,
        shape: tuple[int, int],
        dtype: torch.dtype,
        path: Path | None = None,
        exists: bool = False,
        device: torch.device = CPU,
    ) -> None:
        self.rows, self.path, self.dtype, self.device = rows, path, dtype, device
        self.shape = (length(rows), *shape)
        self._size = self.shape[0] * self._bytes_of_row
        if path is None:
            self._tokens = torch.empty(self.shape, dtype=dtype, device=device)
        elif exists:
            self._require_size()
        else:
            path.unlink(missing_ok=True)
            allocate(path, self._size)  # fails here if the disk is full

    @property
    def _bytes_of_row(self) -> int:
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    def read(self, window: Window, borrowed: Sequence[tuple[slice, Tensor]] = ()) -> Tensor:
        """Return a copy of a window (h, w, C), whose rows are here or among those borrowed."""
        parts = []
        own = overlap(window.rows, self.rows)
        if length(own):
            with_own = self._mapped(own)[:, window.columns]
            parts.append((own.start, with_own))
        for rows, tokens in borrowed:
            shared = overlap(window.rows, rows)
            if length(shared):
                part = tokens[shared.start - rows.start : shared.stop - rows.start]
                parts.append((shared.start, part[:, window.columns].to(self.device)))
        parts.sort(key=lambda part: part[0])
        tokens = [part for _, part in parts]
        if sum(map(len, tokens)) != length(window.rows):
            raise UserError(
                f'the model reads rows {window.rows.start} to {window.rows.stop} of the tokens, '
                'which are too far from the rows of this process: start fewer processes'
            )
        return torch.cat(tokens) if len(tokens) > 1 else tokens[0].clone()

    def write(self, window: Window, tokens: Tensor) -> None:
        """Write tokens (h, w, C) to a window of the rows of this process."""
        self._mapped(window.rows)[:, window.columns] = tokens.to(self.dtype)

    def add(self, window: Window, tokens: Tensor) -> None:
        """Add tokens (h, w, C) to a window of the rows of this process."""
        self._mapped(window.rows)[:, window.columns] += tokens.to(self.device, self.dtype)

    def zero_(self) -> 'TokenFile':
        """Set the tokens of a new file to 0; on a disk, they are 0 already."""
        if self.path is None:
            self._tokens.zero_()
        return self

    def array(self) -> np.ndarray:
        """Return all rows of this process, as an array or a memory map."""
        return self._mapped(self.rows).cpu().numpy()

    def forget(self) -> None:
        """Free tokens in memory, which may be referenced by maps that were computed from them."""
        self._tokens = None

    def sync(self) -> None:
        """Wait until the file is written to the disk."""
        if self.path is not None:
            synchronize(self.path)

    def free(self) -> None:
        """Release the memory or the disk space."""
        self._tokens = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _require_size(self) -> None:
        """Refuse a file of another size, which a memory map would silently extend with zeros."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._size:
            raise damaged(self.path, f'is missing or truncated ({size} of {self._size} bytes)')

    def _mapped(self, rows: Span) -> Tensor:
        rows = shifted(rows, -self.rows.start)
        if self.path is None:
            return self._tokens[rows]
        self._require_size()
        size = length(rows) * self._bytes_of_row
        try:
            mapped = np.memmap(self.path, np.uint8, 'r+', rows.start * self._bytes_of_row, (size,))
        except (OSError, ValueError) as error:  # it has just been removed, truncated or protected
            raise UserError(
                f'{self.path} cannot be read and written ({reason(error)}): start again when its '
                'folder can be used'
            ) from None
        return torch.from_numpy(mapped).view(self.dtype).view(length(rows), *self.shape[1:])


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


def damaged(path: Path, problem: str) -> UserError:
    """Return the error about a file of a run that is not as the run left it."""
    return UserError(f'{path} {problem}: remove {path.parent}, and start again')
