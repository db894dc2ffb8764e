"""Images that are read by windows."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import ArgumentError, ChangedError, UserError, list_folder_hint, reason
from ...base.geometry import Window, tiles, whole
from ...base.processes import shortened
from ...data.tiff.places import NOWHERE, Place
from .no_data import NoData, has_data, representable
from .pixel_sizes import PixelSize, pixel_size_on_map, to_full_size

MAX_CHANNELS = 2**12  # GDAL visits every band even if it reads only a few of them
MAX_BLOCK = 2**28  # bytes of a block, with all bands if they are interleaved
AGAIN = 'run the command again when it is complete'
TILE = 2048, 2048  # pixels that are read at a time if tiles may have any size


class WindowError(UserError):
    """A window of an image cannot be read."""


class ReadOptions(NamedTuple):
    """What is read of an image file.

    Attributes:
        channels: The number of channels that are read, from the first. Default: all bands as they
            are stored, among them the transparency.
        are_labels: Whether bands are read as they are stored, and no pixel is without data.
        nodata: The value of pixels without data. Default: the value in the file.
        level: The number of the level; 0 is the full image, and N is its N-th overview.
        is_stored: Whether the channels are the first bands as they are stored. A virtual raster
            needs this, because it names bands by number. Otherwise, the channels are colors.
    """

    channels: int | None = None
    are_labels: bool = False
    nodata: float | None = None
    level: int = 0
    is_stored: bool = False


class ImageSource(ABC):
    """An image that is read by windows.

    Unpickling opens the file again, for example in another process.

    Attributes:
        name: The name of the image in messages.
        shape: (H, W, channels) of the file.
        channels: The number of channels, from the first, that are read.
        max_rows: The largest height of windows if the file is decoded once for a row of windows,
            or None for any height.
        dtype: The NumPy type of the values.
        max_value: The largest value that the integer type or the header of the file allows.
        georeference: ``crs``, which may be None, and ``transform`` of a GeoTIFF, or {}.
            ``transform`` maps the pixels of this image to map coordinates. A reduced image without
            a georeference has only ``transform``, which maps to the pixels of the full image.
        has_gaps: Whether pixels may have no data; otherwise :meth:`valid` always returns None.
        nodata: The value of pixels without data, or a tuple with the value of each band; None if
            there is none.
        file_nodata: The no-data value of the first band in the file, also of labels, or None.
        level: The number of the level that is read; 0 is the full image.
        levels: The size (H, W) of each level of the file.
        full_size: (H, W) of the full image.
        pixel_size: The size of a pixel of this image, or None if it is not known.
        orientation: The EXIF orientation in which :func:`.open_image` shows this image.
    """

    max_rows: int | None = None
    has_gaps = False
    pixel_size: PixelSize | None = None
    file_nodata: float | None = None
    control_points: tuple = ()
    orientation = 1
    # The window that was read last and its valid pixels, if finding them would need another read.
    _last: tuple[Window, np.ndarray] | None = None

    def __init__(
        self,
        name: str,
        path: Path | None,
        shape: tuple[int, int, int],
        dtype: np.dtype,
        channels: int | None = None,
        nodata: float | None = None,
    ) -> None:
        self.name, self._path, self.shape, self.dtype = name, path, shape, dtype
        self.channels = min(shape[2], channels or shape[2])
        require_few_channels(name, shape[2])
        self.max_value = np.iinfo(dtype).max if dtype.kind in 'iu' else None
        self.georeference: dict[str, Any] = {}
        self.level, self.levels, self.full_size = 0, (shape[:2],), shape[:2]
        self.nodata: NoData = nodata
        if nodata is not None and not representable(nodata, dtype):
            raise ArgumentError(
                f'--nodata {nodata:g}: {name} has values of type {dtype}, which cannot hold it'
            )
        self.has_gaps = nodata is not None or dtype.kind == 'f'
        self._state = self._file_state()

    @property
    def place(self) -> Place:
        """The place of the pixels of this image on the map."""
        if 'crs' not in self.georeference:
            return Place(points=self.control_points)
        return Place(**self.georeference)

    def read(self, window: Window) -> np.ndarray:
        """Return a window (h, w, ``channels``).

        Raises:
            WindowError: If the window cannot be read.
        """
        return self._guarded(self._read, window)

    def valid(self, window: Window) -> np.ndarray | None:
        """Return which pixels of a window have data, (h, w) bool; None if all of them have.

        A pixel has no data if all bands that are read have their no-data value, if one of them is
        NaN, or if a mask or the transparency of the file says so. Its values are undefined.

        Raises:
            WindowError: If the window cannot be read.
        """
        if not self.has_gaps:
            return None
        if self._last is not None and self._last[0] == window:
            valid = self._last[1].copy()
        else:
            valid = self._guarded(self._valid, window)
        return None if valid is None or valid.all() else valid

    def valid_box(self) -> Window:
        """Return a window that holds all pixels with data, as far as is known without reading.

        It may be empty.
        """
        return whole(self.shape[:2])

    def _guarded(self, read: Callable[[Window], Any], window: Window) -> Any:
        try:
            return read(window)
        except UserError:  # raised by the image that this one is computed from
            raise
        except Exception as error:  # the decoders raise many kinds of errors
            rows, columns = window
            raise WindowError(
                f'{self.name}: rows {rows.start} to {rows.stop} and columns {columns.start} to '
                f'{columns.stop} cannot be read ({reason(error.__cause__ or error)}): copy or '
                'repair the file'
            ) from None

    def identity(self) -> list:
        """Return what identifies the image: the state of its file or its values, and its level."""
        state = self._state
        if state is None:
            state = [*self.shape, str(self.dtype), self._digest(self.windows())]
        return [*state, self.level, str(self.nodata)]

    def content(self) -> str:
        """Return a digest of the values of the middle window, which is equal on other machines."""
        windows = [*self.windows()]
        return self._digest([windows[len(windows) // 2]])

    def _digest(self, windows: Iterable[Window]) -> str:
        digest = hashlib.sha256()
        for window in windows:
            digest.update(np.ascontiguousarray(self.read(window)))
        return shortened(digest)

    def windows(self) -> Iterator[Window]:
        """Yield windows that cover the image; a file in strips is decoded once for all of them."""
        return tiles(whole(self.shape[:2]), tile_of(self.max_rows))

    def require_unchanged(self) -> None:
        """Raise a ChangedError if the file has changed since it was opened."""
        if self._file_state() != self._state:
            raise ChangedError(f'{self.name} has changed while it was read: {AGAIN}')

    def _use_level(
        self, level: int, levels: Sequence[tuple[int, int]], place: Place = NOWHERE
    ) -> None:
        """Note which level is read, the sizes (H, W) of all levels, and where the full image is."""
        self.level, self.levels, self.full_size = level, tuple(levels), levels[0]
        self.control_points = place.points
        if level:
            self.georeference = to_full_size(self.shape, self.full_size)
        if place.transform is not None:
            rows, columns = (n / m for n, m in zip(levels[0], self.shape, strict=False))
            transform = place.transform * type(place.transform).scale(columns, rows)
            self.georeference = dict(crs=place.crs, transform=transform)
            self.pixel_size = pixel_size_on_map(place.crs, transform, self.shape[:2])

    def _valid(self, window: Window) -> np.ndarray | None:
        return has_data(self._read(window), self.nodata)

    def _file_state(self) -> list | None:
        return None if self._path is None else state_of_file(self._path)

    @abstractmethod
    def _read(self, window: Window) -> np.ndarray: ...


class FileSource(ImageSource):
    """An image of a file that a pickle opens again, with the same arguments."""

    _arguments: tuple

    def __reduce__(self) -> tuple:
        return type(self), self._arguments, dict(_state=self._state)


class SourceWithGaps(ImageSource):
    """An image whose pixels and validity come from the same read."""

    def _read(self, window: Window) -> np.ndarray:
        pixels, valid = self._read_both(window)
        self._last = window, valid
        return pixels

    def _valid(self, window: Window) -> np.ndarray:
        return self._read_both(window)[1]

    @abstractmethod
    def _read_both(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixels of a window, and which of them have data."""


@contextmanager
def errors_of(image: str | Path) -> Iterator[None]:
    """Turn the errors of opening a file into a sentence that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f'{image} does not exist{list_folder_hint(image)}') from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{image} cannot be opened ({reason(error)})') from None


def require_few_channels(name: str, count: int) -> None:
    """Refuse an image with more channels than can be read."""
    if count > MAX_CHANNELS:
        raise UserError(
            f'{name} has {count} channels, but at most {MAX_CHANNELS} can be read: copy those that '
            'the model needs to another file'
        )


def require_small_blocks(path: Path | str, size: Sequence[int], bytes_of_pixel: int) -> None:
    """Refuse a file with blocks (h, w) that take too much memory; a small file can claim any."""
    rows, columns = size
    needed = rows * columns * bytes_of_pixel
    if needed > MAX_BLOCK:
        raise UserError(
            f'{path} consists of blocks of {columns}x{rows} pixels that take {needed} bytes each, '
            f'but at most {MAX_BLOCK} are possible: write it with smaller blocks, for example with '
            'gdal_translate -co TILED=YES -co INTERLEAVE=BAND'
        )


def require_level(name: str, level: int, levels: Sequence[tuple[int, int]]) -> None:
    """Refuse a level that an image with levels of the sizes (H, W) does not have."""
    if not 0 <= level < len(levels):
        sizes = ', '.join(f'{i} ({width}x{height})' for i, (height, width) in enumerate(levels))
        raise ArgumentError(
            f'{name} has no level {level}, but {sizes}: --resolution reduces it to any size, and '
            'gdaladdo -r average FILE 2 4 8 16 adds levels to a TIFF file'
        )


def tile_of(max_rows: int | None) -> tuple[int, int]:
    rows, columns = TILE
    return rows if max_rows is None else min(max_rows, rows), columns


def state_of_file(path: Path) -> list:
    """Return the real path, the size and the time of a file, or [] if it was removed."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
