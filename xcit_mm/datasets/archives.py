"""Zip archives of datasets: the right ones, and unpacked without leaving their folder."""

import hashlib
import stat
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from rich.console import Console
from rich.progress import track, wrap_file

from ..errors import UserError, reason

CHUNK = 2**20  # bytes
ENCRYPTED = 0x1  # a flag of an entry
# What zipfile raises at an archive that is cut off, changed, or packed by an unknown method.
UNREADABLE = (BadZipFile, EOFError, zlib.error, NotImplementedError, ValueError)


def require_md5(file: BinaryIO, md5: str, size: int, name: str, remedy: str) -> None:
    """Compare a file with its checksum.

    Args:
        file: Opened for reading, at its start.
        md5: In hexadecimal digits.
        size: Of the file in bytes, for the progress bar.
        name: Of the file, for the error.
        remedy: What to do about another one, for the error.

    Raises:
        UserError: If it is another one.
    """
    digest = hashlib.md5(usedforsecurity=False)
    console = Console(stderr=True)
    with wrap_file(file, size, description=f'Checking {Path(name).name}', console=console) as shown:
        while chunk := shown.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != md5:
        raise UserError(
            f'{name} is damaged, or another file (its MD5 is {digest.hexdigest()}, not {md5}): '
            f'{remedy}'
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive; every file is compared with its checksum.

    Args:
        archive: The file.
        folder: Where to; it is made. After an error something may be in it.

    Raises:
        UserError: If the archive is damaged, or has an entry that is no plain file or folder, or
            would lie outside the folder: nothing is unpacked then.
    """
    console = Console(stderr=True)
    try:
        with ZipFile(archive) as opened:
            entries = opened.infolist()
            for entry in entries:
                _require_harmless(archive, entry)
            for entry in track(entries, f'Unpacking {archive.name}', console=console):
                opened.extract(entry, folder)
    except UNREADABLE as error:
        raise UserError(
            f'{archive} is damaged ({reason(error)}): remove it, and start again'
        ) from None


def _require_harmless(archive: Path, entry: ZipInfo) -> None:
    name = PurePosixPath(entry.filename)
    if name.is_absolute() or '..' in name.parts or '\\' in entry.filename:
        fault = 'would lie outside of the folder'
    elif stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        fault = 'is a link or a device'
    elif entry.flag_bits & ENCRYPTED:
        fault = 'is encrypted'
    else:
        return
    raise UserError(
        f'{archive} is not unpacked: its entry {entry.filename} {fault}; remove the file'
    )
