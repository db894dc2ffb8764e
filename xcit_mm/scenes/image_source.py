"""Images that are read by windows."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, reason
from ..processes import digest_of_file, shortened
from .geometry import Window, tiles, whole

MAX_CHANNELS = 2**12  # GDAL looks at each band whenever it reads a few of them
TILE = 2048, 2048  # pixels that are read at a time where any tile would do
# How messages about a file that has changed end, with the remedy.
PREDICTED = 'it was predicted: predict it again when it is complete'
TRAINED = 'a training step read it: resume the run when it is complete'


class WindowError(UserError):
    """A window of an image cannot be read."""


class ImageSource(ABC):
    """An image that is read by windows.

    A pickled image is opened again, for example one that another process sends.

    Attributes:
        name: The name of the image in messages.
        shape: (H, W, channels) of the file.
        channels: The number of channels, from the first, that are read.
        max_rows: The largest height of windows if the file is decoded once for a row of windows,
            or None for any height.
        dtype: The NumPy type of the values.
        max_value: The largest value that the integer type or the header of the file allows.
        georeference: ``crs`` and ``transform`` of a GeoTIFF, or {}.
        has_gaps: Whether pixels may have no data; otherwise :meth:`valid` always returns None.
    """

    max_rows: int | None = None
    has_gaps = False

    def __init__(
        self,
        name: str,
        path: Path | None,
        shape: tuple[int, int, int],
        dtype: np.dtype,
        channels: int | None = None,
    ) -> None:
        self.name, self._path, self.shape, self.dtype = name, path, shape, dtype
        self.channels = min(shape[2], channels or shape[2])
        if shape[2] > MAX_CHANNELS:
            raise UserError(
                f'{name} has {shape[2]} channels, but at most {MAX_CHANNELS} can be read: copy '
                'those that the model needs to another file'
            )
        self.max_value = np.iinfo(dtype).max if dtype.kind in 'iu' else None
        self.georeference: dict[str, Any] = {}
        self._state = self._file_state()

    def read(self, window: Window) -> np.ndarray:
        """Return a window (h, w, ``channels``).

        Raises:
            WindowError: If the window cannot be read.
        """
        try:
            return self._read(window)
        except UserError:  # of another image, from which this one is computed
            raise
        except Exception as error:  # the decoders raise many kinds of errors
            rows, columns = window
            raise WindowError(
                f'{self.name}: rows {rows.start} to {rows.stop} and columns {columns.start} to '
                f'{columns.stop} cannot be read ({reason(error.__cause__ or error)}): copy or '
                'repair the file'
            ) from None

    def valid(self, window: Window) -> np.ndarray | None:
        """Return which pixels of a window have data, (h, w) bool; None if all of them have."""
        return None

    def valid_box(self) -> Window:
        """Return a window that holds all pixels with data, from the header of the file."""
        return whole(self.shape[:2])

    def identity(self) -> list:
        """Return what identifies the image: the state of its file, or its values."""
        if self._state is not None:
            return self._state
        return [*self.shape, str(self.dtype), self.content()]

    def content(self) -> str:
        """Return a digest of the file, which is equal on other machines, or of the values."""
        if self._path is not None:
            return digest_of_file(self._path)
        digest = hashlib.sha256()
        for window in self.windows():
            digest.update(self.read(window))
        return shortened(digest)

    def windows(self) -> Iterator[Window]:
        """Yield windows that cover the image; a file in strips is decoded once for all of them."""
        return tiles(whole(self.shape[:2]), tile_of(self.max_rows))

    def require_unchanged(self, use: str = PREDICTED) -> None:
        """Raise a UserError if the file has changed since it was opened.

        ``use`` is ``PREDICTED`` or ``TRAINED``, the end of the message.
        """
        if self._file_state() != self._state:
            raise UserError(f'{self.name} has changed while {use}')

    def _file_state(self) -> list | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:  # it was removed
            return []
        return [str(self._path.resolve()), status.st_size, status.st_mtime_ns]

    @abstractmethod
    def _read(self, window: Window) -> np.ndarray: ...


def tile_of(max_rows: int | None) -> tuple[int, int]:
    rows, columns = TILE
    return rows if max_rows is None else min(max_rows, rows), columns
