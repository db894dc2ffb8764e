"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO

from .errors import UserError, reason

UNFINISHED = '.unfinished'


@contextmanager
def write_whole(path: Path, mode: str = 'wb') -> Iterator[IO]:
    """Open a file beside ``path`` that takes its name once the block has ended without an error.

    An error, an interruption or a full disk leaves what was at ``path`` as it was.

    Args:
        path: The file, which is replaced.
        mode: As of ``open``, for writing.
    """
    name = dict(dir=path.parent, prefix=f'.{path.name}.', suffix=UNFINISHED)
    with NamedTemporaryFile(mode, **name, delete=False) as file:
        unfinished = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            unfinished.chmod(0o644)  # a temporary file is its owner's alone
            unfinished.replace(path)
            _sync_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what :func:`write_whole` was killed over. Nobody else may be writing there."""
    for path in folder.glob(f'.*{UNFINISHED}'):
        path.unlink(missing_ok=True)


def require_writable(folder: Path | str) -> None:
    """Make the folder, where it is not there, and see that files can be written in it.

    Raises:
        UserError: If not.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
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
