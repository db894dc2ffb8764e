"""Files that are written whole or not at all, and reading of regular files only."""

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile, mkdtemp
from typing import IO, Any, BinaryIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from .errors import UserError, reason

UNFINISHED = '.unfinished'
EARLIER = 'earlier_'  # followed by the time of the files that were set aside
# The last is of a file that is larger than the disk or the shell (ulimit) allows.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # on Windows
RESERVED = re.compile(r'con|prn|aux|nul|(com|lpt)\d', re.I)  # devices there, with any suffix
GROWTH = 2**20  # bytes that a file on a full disk cannot take


@contextmanager
def write_whole(path: Path, mode: str = 'wb') -> Iterator[IO]:
    """Open a file next to ``path``, and rename it to ``path`` if the block ends without an error.

    After an error, an interruption or on a full disk, ``path`` is what it was before.
    """
    options = dict(dir=path.parent, prefix=f'.{path.name}.', suffix=UNFINISHED, delete=False)
    if 'b' not in mode:  # names of files may hold bytes that are not valid text
        options |= dict(encoding='utf-8', errors='surrogateescape', newline='\n')
    file = NamedTemporaryFile(mode, **options)  # noqa: SIM115  closed before it is renamed
    unfinished = Path(file.name)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(0o644)  # a temporary file is readable by its owner only
        unfinished.replace(path)
        synchronize(path.parent)  # so that the new name survives a loss of power
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch.save hides a full disk
            raise error.__context__ from None
        raise
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def write_beside(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and move the file or folder there to ``path`` if no error occurs.

    This is :func:`write_whole` for libraries that write to a name. The yielded path has the name
    of ``path`` and is in a folder of its own next to it, which is removed with all that is left in
    it. If the disk is full, the error of the block has the OSError that says so as its cause.
    """
    with unfinished_folder(path.parent, path.name) as folder:
        try:
            output = folder / path.name
            yield output
            for inner in (output, *output.rglob('*')):
                synchronize(inner)
            if output.is_dir() and path.exists():  # a folder with files cannot be replaced at once
                path.replace(folder / 'earlier')
            output.replace(path)
            synchronize(path.parent)
        except Exception as error:
            if (full := _disk_full(folder)) is not None:  # GDAL and SQLite hide it
                raise error from full
            raise


@contextmanager
def unfinished_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a hidden folder, and remove it with what is in it at the end of a ``with`` block.

    On Windows, a file that is still open or mapped stays, for :func:`remove_unfinished`.
    """
    folder = Path(mkdtemp(dir=parent, prefix=f'.{name}.', suffix=UNFINISHED))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _disk_full(folder: Path) -> OSError | None:
    """Return why the largest file of a folder cannot grow, if the disk is full."""
    files = filter(Path.is_file, folder.rglob('*'))
    try:
        largest = max(files, key=lambda path: path.stat().st_size, default=folder / 'growing')
        with largest.open('ab') as file:
            file.write(bytes(GROWTH))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error if error.errno in DISK_FULL else None
    return None


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, its cause or its context says that the disk is full."""
    while error is not None and getattr(error, 'errno', None) not in DISK_FULL:
        error = error.__cause__ or error.__context__
    return error is not None


def synchronize(path: Path) -> None:
    """Wait until the disk holds a file, or the names in a folder if the system can open it."""
    if path.is_dir() and not hasattr(os, 'O_DIRECTORY'):  # Windows
        return
    # Windows writes no file that is open for reading only.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocate(path: Path, size: int) -> None:
    """Make a file of zeros whose space is reserved. Raises an OSError if the disk is full."""
    with path.open('xb') as file:
        if hasattr(os, 'posix_fallocate'):  # on Linux
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            for start in range(0, size, GROWTH):
                file.write(bytes(min(GROWTH, size - start)))


def move_folder(folder: Path, target: Path) -> None:
    """Move a folder to a path on the same disk where nothing is, or an empty folder."""
    with suppress(OSError):
        target.rmdir()  # Windows replaces no folder
    folder.replace(target)


def valid_name(text: str) -> str:
    """Return text as the name of a file on every system, '' if nothing is left of it."""
    name = NOT_IN_NAMES.sub('_', text).strip('.').rstrip('. ')
    return f'_{name}' if RESERVED.fullmatch(name.partition('.')[0].rstrip()) else name


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, whole or not at all; NumPy's numbers become floats."""
    with write_whole(path, 'w') as file:
        json.dump(content, file, indent=2, default=float)


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a regular file, or raise OSError if it is larger than ``max_bytes``."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(status.st_size)  # files of the kernel have no size


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or raise OSError: a pipe may never open, and a device never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # open refuses a folder
        raise OSError(errno.EINVAL, 'Not a regular file', str(path))
    return path.open('rb')


def parse_xml(data: bytes) -> Element:
    """Parse XML, or raise ValueError (declarations) or ParseError (invalid).

    Entities, and default values of attributes, make gigabytes of a small file.
    """
    text = data.replace(b'\0', b'')  # of UTF-16, too
    if b'<!ENTITY' in text or b'<!ATTLIST' in text:
        raise ValueError(
            'XML entities and declared attributes are refused, because they can fill the memory'
        )
    return ElementTree.fromstring(data)


def remove_unfinished(folder: Path, name: str = '') -> None:
    """Remove what killed calls of :func:`write_whole` and :func:`write_beside` left in a folder.

    Nobody may be writing there. The names of the files that were written begin with ``name``.
    """
    for path in folder.glob(f'.{name}*{UNFINISHED}'):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def require_writable(folder: Path | str) -> None:
    """Make a folder if it is missing, and refuse it if files cannot be written in it."""
    with writing_to(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def require_writable_file(path: Path) -> None:
    """Make the folder of a file if it is missing, and refuse a file that cannot be written."""
    require_writable(path.parent)
    if path.is_dir():
        raise UserError(f'--out {path}: a folder, not a file to write to')


def set_aside(folder: Path, paths: Sequence[Path]) -> Path | None:
    """Move the files of an earlier call, if any, into a folder ``earlier_*``, and return it."""
    if not paths:
        return None
    newest = time.localtime(max(path.lstat().st_mtime for path in paths))
    name = time.strftime(f'{EARLIER}%Y%m%d_%H%M%S', newest)
    names = chain([name], (f'{name}.{number}' for number in count(2)))
    aside = next(folder / name for name in names if not (folder / name).exists())
    with writing_to(folder):
        aside.mkdir()
        for path in paths:
            moved = aside / path.relative_to(folder)
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.replace(moved)
    return aside


def write_files(
    folder: Path, files: Mapping[Path, bytes], of_earlier_calls: Iterable[Path] = ()
) -> str:
    """Write files, and return a sentence on what happened to earlier ones.

    Files with other content at these paths, or at the paths ``of_earlier_calls``, are moved into
    a folder ``earlier_*``.
    """
    existing = [path for path in {*files, *of_earlier_calls} if path.exists()]
    if {path: path.is_file() and path.read_bytes() for path in existing} == files:
        return 'Everything was already there'
    aside = set_aside(folder, existing)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as file:
            file.write(content)
    return f'Earlier files are now in {aside}' if aside else f'Everything was written to {folder}'


@contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Turn an OSError inside the block into a UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f'the folder {folder} cannot be written to ({reason(error)}): name another one'
        ) from None
