"""Files that are whole or not there."""

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, BinaryIO

from .errors import UserError, reason

UNFINISHED = '.unfinished'
EARLIER = 'earlier_'  # and the time of what was set aside
# The last is of a file that is larger than the disk or the shell (ulimit) allows.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_whole(path: Path, mode: str = 'wb') -> Iterator[IO]:
    """Open a file beside ``path`` that takes its name once the block has ended without an error.

    An error, an interruption or a full disk leaves what was at ``path`` as it was.

    Args:
        path: The file, which is replaced.
        mode: As of ``open``, for writing; a text is in UTF-8.

    Raises:
        UserError: If there is a folder at ``path``.
    """
    if path.is_dir():
        raise UserError(f'{path} is a folder, where a file is to be written: move it away')
    name = dict(dir=path.parent, prefix=f'.{path.name}.', suffix=UNFINISHED)
    # Names of files may have bytes that are no text.
    text = {} if 'b' in mode else dict(encoding='utf-8', errors='surrogateescape')
    with NamedTemporaryFile(mode, **name, **text, delete=False) as file:
        unfinished = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            unfinished.chmod(0o644)  # a temporary file is its owner's alone
            unfinished.replace(path)
            _sync_folder(path.parent)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # which torch.save hides behind its own
                raise error.__context__ from None
            raise
        finally:
            unfinished.unlink(missing_ok=True)


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a file, and not a device or a pipe, which may have no end or never begin.

    Args:
        path: The file.
        max_bytes: The largest size to read; None: any.

    Raises:
        OSError: If it cannot be opened, is none or is larger.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(status.st_size)  # files of the kernel have no size, and may have no end


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, and neither a device nor a pipe, which a plain open may wait for.

    Raises:
        OSError: If it cannot be opened, or is none.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # open refuses a folder
        raise OSError(errno.EINVAL, 'Not a regular file', str(path))
    return path.open('rb')


def require_no_links(folder: Path) -> None:
    """Refuse a folder of a run that is a link, or holds one: what is written would go elsewhere.

    Raises:
        UserError: With the first of them.
    """
    for path in (folder, *folder.glob('*')):
        if path.is_symlink():
            raise UserError(f'{path} is a link, where a run writes files of its own: move it away')


def remove_unfinished(folder: Path) -> None:
    """Remove what :func:`write_whole` was killed over. Nobody else may be writing there."""
    for path in folder.glob(f'.*{UNFINISHED}'):
        if path.is_file():
            path.unlink(missing_ok=True)


def require_writable(folder: Path | str) -> None:
    """Make the folder, where it is not there, and see that files can be written in it.

    Raises:
        UserError: If not.
    """
    with writing_to(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def require_writable_file(path: Path) -> None:
    """See that a file can be written, and make its folder where it is not there.

    Raises:
        UserError: If not, or if it is a folder.
    """
    require_writable(path.parent)
    if path.is_dir():
        raise UserError(f'--out {path}: a folder, not a file to write to')


def set_aside(folder: Path, paths: Sequence[Path], remedy: str) -> Path | None:
    """Move what an earlier call left in a folder into ``earlier_*`` there.

    Nothing of it is lost then, or mixed with what is new.

    Args:
        folder: Where a new call is about to write.
        paths: What is to be moved of it.
        remedy: What to do where it cannot be moved, for the error.

    Returns:
        The new folder that it is in; None if there was nothing.

    Raises:
        UserError: If it cannot be moved.
    """
    if not paths:
        return None
    newest = time.localtime(max(path.lstat().st_mtime for path in paths))
    aside = folder / time.strftime(f'{EARLIER}%Y%m%d_%H%M%S', newest)
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f'{aside.name.partition(".")[0]}.{number}')
    try:
        aside.mkdir()
        for path in paths:
            path.replace(aside / path.name)
    except OSError as error:
        raise UserError(
            f'what an earlier call left in {folder} cannot be moved to {aside} ({reason(error)}): '
            f'{remedy}'
        ) from None
    return aside


@contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Turn an OSError within the block into a UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f'the folder {folder} cannot be written to ({reason(error)}): name another one'
        ) from None


def _sync_folder(folder: Path) -> None:
    """The new name survives a loss of power, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
