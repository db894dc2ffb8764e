"""Keep the tokens of an image in memory or in files, and read and write windows of them."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .windows import Window, length, overlap, shifted


class TokenStore:
    """Rows of tokens (H, W, C), in memory, or in a file if ``path`` is not None.

    Only the windows that are read or written are mapped into memory, so a file does not count as
    memory of the process. A process that holds a band of an image also keeps borrowed rows of its
    neighbours; see :class:`xcit_mm.large_images.bands.Bands`.

    Args:
        rows: The rows of the image that this process holds.
        shape: (W, C).
    """

    def __init__(
        self, rows: slice, shape: tuple[int, int], dtype: torch.dtype, path: Path | None = None
    ) -> None:
        self.rows, self.path, self.dtype = rows, path, dtype
        self.shape = (length(rows), *shape)
        self.borrowed: list[tuple[slice, Tensor]] = []  # rows of other processes
        if path is None:
            self._tokens = torch.empty(self.shape, dtype=dtype)
        else:
            size = self.shape[0] * self._bytes_of_row
            with path.open('r+b' if path.exists() else 'w+b') as file:
                if os.fstat(file.fileno()).st_size != size:
                    file.truncate(0)
                    os.posix_fallocate(file.fileno(), 0, size)  # fails here if the disk is full

    @property
    def _bytes_of_row(self) -> int:
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    def read(self, window: Window) -> Tensor:
        """Return a copy of a window (h, w, C), whose rows may be borrowed."""
        parts = []
        own = overlap(window.rows, self.rows)
        if length(own):
            with_own = self._mapped(own)[:, window.columns]
            parts.append((own.start, with_own))
        for rows, tokens in self.borrowed:
            shared = overlap(window.rows, rows)
            if length(shared):
                part = tokens[shared.start - rows.start : shared.stop - rows.start]
                parts.append((shared.start, part[:, window.columns]))
        parts.sort(key=lambda part: part[0])
        tokens = [part for _, part in parts]
        if sum(map(len, tokens)) != length(window.rows):
            raise UserError(
                f'the model reads rows {window.rows.start} to {window.rows.stop} of the tokens, '
                'which are too far from those of this process: start fewer processes'
            )
        return torch.cat(tokens) if len(tokens) > 1 else tokens[0].clone()

    def write(self, window: Window, tokens: Tensor) -> None:
        """Write tokens (h, w, C) to a window of the rows of this process."""
        self._mapped(window.rows)[:, window.columns] = tokens

    def array(self) -> np.ndarray:
        """Return all rows of this process, as an array or a memory map."""
        return self._mapped(self.rows).numpy()

    def sync(self) -> None:
        """Wait until the file is written to the disk."""
        if self.path is not None:
            with self.path.open('r+b') as file:
                os.fsync(file.fileno())

    def free(self) -> None:
        """Release the memory or the disk space."""
        self._tokens = None
        self.borrowed = []
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _mapped(self, rows: slice) -> Tensor:
        rows = shifted(rows, -self.rows.start)
        if self.path is None:
            return self._tokens[rows]
        size = length(rows) * self._bytes_of_row
        mapped = np.memmap(self.path, np.uint8, 'r+', rows.start * self._bytes_of_row, (size,))
        return torch.from_numpy(mapped).view(self.dtype).view(length(rows), *self.shape[1:])
