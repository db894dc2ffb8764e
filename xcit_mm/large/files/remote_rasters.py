"""Large TIFF files by address, of which only the needed parts are transferred.

GDAL gets the parts from this package, and reaches no network and no other file itself.
"""

import io
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ...base.http import read_range
from ...data.tiff.file_headers import require_modest_tiff
from .image_source import FileSource, ReadOptions
from .rasters import GdalImage

REMOTE = ('.tif', '.tiff', '.btf', '.tf8')
BLOCK, KEPT_BLOCKS = 2**18, 2**8  # smallest number of bytes per transfer, and blocks in memory
NAME = 'remote.tif'  # the only name that GDAL can open


class RemoteFile:
    """A file on a web server, read by blocks.

    Attributes:
        url: The address.
        version: The size of the file, and what the server says about its version.
        error: What GDAL's last read raised. GDAL itself cannot pass it on.
    """

    def __init__(self, url: str) -> None:
        self.url, self.error = url, None
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._blocks[0], self.version = read_range(url, 0, BLOCK)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a span, up to the end of the file."""
        stop = min(stop, self.version.size)
        if start >= stop:
            return b''
        first, last = start // BLOCK, (stop - 1) // BLOCK
        blocks = [self._blocks.get(number) for number in range(first, last + 1)]
        missing = [first + i for i, block in enumerate(blocks) if block is None]
        if missing:  # all in one request
            begin = missing[0]
            data, _ = read_range(self.url, begin * BLOCK, (missing[-1] + 1) * BLOCK, self.version)
            for number in range(begin, missing[-1] + 1):
                block = data[(number - begin) * BLOCK : (number - begin + 1) * BLOCK]
                self._blocks[number] = blocks[number - first] = block
        for number in range(first, last + 1):
            self._blocks.move_to_end(number)
        while len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return b''.join(blocks)[start - first * BLOCK : stop - first * BLOCK]

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise what went wrong while GDAL read the file in a ``with`` block."""
        self.error = None
        try:
            yield
        except Exception:
            if self.error is None:
                raise
        if self.error is not None:
            raise self.error


class Reader(io.RawIOBase):
    """A remote file as GDAL reads it: without errors, which would end the process."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._place = file, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.version.size}
        self._place = start[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        stop = self._file.version.size if size < 0 else self._place + size
        try:
            data = b'' if self._file.error else self._file.read(self._place, stop)
        except BaseException as error:
            self._file.error, data = error, b''
        self._place += len(data)
        return data


class RemoteRaster(FileSource, GdalImage):
    """A TIFF file by address, such as a cloud-optimized GeoTIFF."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        import rasterio

        self._remote, self._arguments = RemoteFile(url), (url, options)
        opener = _opener(self._remote)

        def open_file(**level: Any) -> Any:
            return rasterio.open(NAME, opener=opener, driver='GTiff', **level)

        with self._remote.raising():
            tags = require_modest_tiff(url, Reader(self._remote))
            super().__init__(url, None, open_file, options, tags)

    def content(self) -> str:
        """Return the version of the file on its server."""
        return str(self._remote.version)

    def require_unchanged(self) -> None:
        super().require_unchanged()
        read_range(self._remote.url, 0, 1, self._remote.version)

    def _file_state(self) -> list:
        # The rest of an address may be a signature, which differs from run to run.
        return [self._remote.url.partition('?')[0], *self._remote.version]

    def _raising(self) -> AbstractContextManager:
        return self._remote.raising()


def _opener(file: RemoteFile) -> Any:
    """Return what opens this file for GDAL, and no other file."""
    from rasterio.abc import FileContainer

    class Opener(FileContainer):
        def open(self, path: str, mode: str = 'r', **options: Any) -> Reader:
            if path != NAME:
                raise FileNotFoundError(path)
            return Reader(file)

        def isdir(self, path: str) -> bool:
            return False

        def isfile(self, path: str) -> bool:
            return path == NAME

        def ls(self, path: str) -> list[str]:
            return []

        def mtime(self, path: str) -> int:
            return 0

        def size(self, path: str) -> int:
            if path != NAME:
                raise FileNotFoundError(path)
            return file.version.size

        def rm(self, path: str) -> None:
            raise PermissionError(path)

    return Opener()
